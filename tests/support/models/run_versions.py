"""Training without a flush against a reference: the whole model in one process, with explicit versions of its weights.

The reference shares no code with the runtime. It computes one micro-batch after another, each stage with the version of
its weights that the policy's formula gives, and appends a version to every stage's list after each mini-batch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from run_plans import hand_split, plan_of
from run_splits import in_halves
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from graphpipe.model import DagModule
from graphpipe.plans import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.schedule.segments.planned_versions import with_policy

BATCH, SIZE = 8, 4
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1),
}
CUTS: dict[str, tuple[str, list[list[int]]]] = {
    "norm": ("norm", [[0], [1], [2], [3]]),
    "checkpointed": ("checkpointed", [[0], [1], [2], [3]]),
    "chain": ("chain", [[0], [1], [2], [3]]),
    "deep": ("deep", [[0], [1], [2], [3]]),
    "chain on two": ("chain", [[0], [0], [1], [1]]),
    "diamond": ("diamond", [[0], [1], [2], [3]]),
    "replicas": ("diamond", [[0], [0, 1], [1], [1, 0]]),
    "replicas apart": ("chain", [[0, 1], [2, 3], [2, 3], [0, 1]]),
}
"""By name: the model, and the devices of its stages."""


class Joined(nn.Module):
    """Scores the sum of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 3)

    def forward(self, *inputs: Tensor) -> Tensor:
        total = inputs[0]
        for other in inputs[1:]:
            total = total + other
        return self.score(total)


class Checkpointed(nn.Module):
    """Computes its layers a second time in the backward."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.recomputes = True

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=False) if self.recomputes else self.layers(x)


class Shift(nn.Module):
    """Adds a parameter, whose gradient does not depend on any weight."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def model_of(kind: str) -> DagModule:
    """Return a chain of four, or a diamond whose stem the head reads too."""
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {
        "a": nn.Sequential(nn.Linear(5, 6), nn.Tanh()),
        "b": nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)),
        "c": nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
        "d": Joined(),
    }
    feeds = {"a": ["x"], "b": ["a"], "c": ["b"], "d": ["c"]}
    if kind == "deep":  # The latest stage needs its own weights in its backward.
        layers["a"] = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6))
    if kind == "norm":
        layers["b"] = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    if kind == "dropout":
        layers["b"] = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6))
    if kind == "checkpointed":
        layers |= {name: Checkpointed(layers[name]) for name in "bc"}
    if kind == "shifts":
        layers = {name: Shift() for name in "abcd"}
    if kind == "diamond":
        feeds = {"a": ["x"], "b": ["a"], "c": ["a"], "d": ["a", "b", "c"]}
    return DagModule(layers, inputs=feeds)


def batch_of(step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets of one mini-batch."""
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(BATCH, 5, generator=generator)}, torch.randint(0, 3, (BATCH,), generator=generator)


def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples."""
    return nn.functional.cross_entropy(output, targets)


def plan_under(
    model: DagModule,
    cut: str,
    policy: WeightPolicy,
    predictor: Predictor = "",
    schedule: str = "1f1b",
    size: int = SIZE,
) -> Plan:
    """Return a plan under a weight policy."""
    lines = [([name], on, size) for name, on in zip(model.feeds, CUTS[cut][1], strict=True)]
    plan = plan_of(model, batch_of(0)[0], lines, BATCH)
    return with_policy(in_halves(plan, schedule), policy, predictor)


def pipeline_under(
    cut: str, policy: WeightPolicy, predictor: Predictor = "", *, schedule: str = "1f1b", **options: Any
) -> tuple[Pipeline, DagModule]:
    """Return a pipeline, and its model."""
    model = model_of(CUTS[cut][0])
    plan = plan_under(model, cut, policy, predictor, schedule)
    if change := options.pop("change", None):
        plan = change(plan)
    optimizer = OPTIMIZERS[options.pop("optimizer", "adam")]
    programs = hand_split(model, plan, batch_of(0)[0])
    return Pipeline(plan, programs, loss_fn, optimizer, options=PipelineOptions(debug=True, **options)), model


def train_segments(
    cut: str, policy: WeightPolicy, predictor: Predictor = "", segments: Sequence[int] = (5, 2), **options: Any
) -> dict[str, Any]:
    """Train in segments of these lengths; return the losses and the weights."""
    pipeline, model = pipeline_under(cut, policy, predictor, **options)
    losses: list[float] = []
    with pipeline:
        for length in segments:
            losses += pipeline.segment([batch_of(len(losses) + step) for step in range(length)])
        pipeline.sync_model()
    return {"losses": losses, "weights": {name: each.clone() for name, each in model.state_dict().items()}}


def train_cases(cases: Sequence[tuple[str, WeightPolicy, Predictor, str, str]]) -> list[dict[str, Any]]:
    """Train each (cut, policy, predictor, optimizer, schedule) on the present ranks."""
    return [
        train_segments(cut, policy, predictor, optimizer=optimizer, schedule=schedule)
        for cut, policy, predictor, optimizer, schedule in cases
    ]


@dataclass
class Reference:
    """Trains a model by explicit versions of every stage's weights."""

    model: DagModule
    degrees: list[int]
    optimizer: str
    policy: str
    predictor: str = ""
    mini_batches: int = 0
    versions: list[list[dict[str, Tensor]]] = field(default_factory=list)
    """By stage, by version since the segment began."""
    steps: list[list[dict[str, Tensor]]] = field(default_factory=list)
    """The same for what the last update subtracted; empty before the first one."""

    def __post_init__(self) -> None:
        self.names = [*self.model.feeds]
        self.stages = [self.model.get_submodule(name) for name in self.names]
        self.optimizers = [OPTIMIZERS[self.optimizer]([*stage.parameters()]) for stage in self.stages]
        self.after = [self._after(name) for name in self.names]

    def _after(self, name: str) -> int:
        # The stages on the longest path behind a stage.
        return max((1 + self._after(other) for other, feeds in self.model.feeds.items() if name in feeds), default=0)

    def weights(self, stage: int, micro_batch: int, *, backward: bool = False) -> dict[str, Tensor]:
        """Return the weights that a stage reads for a micro-batch."""
        version, ahead = self.version(stage, micro_batch), 0
        if self.policy == "predict":
            version, ahead = self.predicted(stage, micro_batch, backward=backward)
        if self.policy == "moving-average" and backward:
            return self.reconstructed(stage, version, micro_batch // (BATCH // SIZE))
        weights, step = self.versions[stage][version], self.steps[stage][version]
        if not ahead or not step:
            return weights
        return {name: weights[name] - step[name] * (self.optimizers[stage].defaults["lr"] * ahead) for name in weights}

    def reconstructed(self, stage: int, version: int, newest: int) -> dict[str, Tensor]:
        """Return a version as an average of the steps since it was made gives it, from the list of all versions."""
        delay, kept = -(-self.after[stage] // (BATCH // SIZE)), self.versions[stage]
        average = {name: torch.zeros_like(each) for name, each in kept[0].items()}
        for number in range(1, newest + 1):
            for name, mean in average.items():
                step = kept[number - 1][name] - kept[number][name]
                average[name] = mean + (step - mean) / min(number, delay or 1)
        if version == newest:
            return kept[newest]
        return {name: each + average[name] * (newest - version) for name, each in kept[newest].items()}

    def predicted(self, stage: int, micro_batch: int, *, backward: bool) -> tuple[int, int]:
        """Return the version that a prediction begins with, and by how many updates it is ahead."""
        each = BATCH // SIZE
        target = mini_batch = micro_batch // each
        if self.predictor == "spectrain":
            before = max(self.after) - self.after[stage]
            target = min((micro_batch + before // 2) // each, self.mini_batches - 1)
        first = mini_batch * each if self.predictor == "xpipe" else micro_batch
        version = mini_batch if backward else max(0, first - self.after[stage]) // each
        return version, max(0, target - version)

    def version(self, stage: int, micro_batch: int) -> int:
        """PipeDream's formulas, for mini-batches of several micro-batches."""
        each = BATCH // SIZE
        mini_batch = micro_batch // each
        if self.policy == "double-buffer":
            return max(0, mini_batch - 1)
        if self.policy == "flush":
            return mini_batch
        # 1F1B: a stage forwards one micro-batch more than there are stages behind it, then one after each backward.
        updated = [max(0, micro_batch - after) // each for after in self.after]
        if self.policy == "vertical-sync":
            return min(max(0, mini_batch * each - after) // each for after in self.after)
        return updated[stage]

    def segment(self, batches: Sequence[tuple[dict[str, Tensor], Tensor]]) -> list[float]:
        """Train on mini-batches without a flush; return their losses."""
        self.mini_batches = len(batches)
        self.versions = [[_copy(stage)] for stage in self.stages]
        self.steps = [[self._step(stage)] for stage in range(len(self.stages))]
        losses: list[float] = []
        for number, (inputs, targets) in enumerate(batches):
            sums: list[list[dict[str, Tensor]]] = [[{} for _ in range(degree)] for degree in self.degrees]
            losses.append(0.0)
            for inside in range(BATCH // SIZE):
                rows = slice(inside * SIZE, (inside + 1) * SIZE)
                micro_batch = number * (BATCH // SIZE) + inside
                losses[-1] += self._micro_batch(micro_batch, inputs["x"][rows], targets[rows], sums)
            for stage, replicas in enumerate(sums):
                self._update(stage, replicas)
        return losses

    def _update(self, stage: int, replicas: list[dict[str, Tensor]]) -> None:
        for name, parameter in self.stages[stage].named_parameters():
            parameter.grad = replicas[0][name]
            for other in replicas[1:]:
                parameter.grad = parameter.grad + other[name]
        self.optimizers[stage].step()
        self.versions[stage].append(_copy(self.stages[stage]))
        self.steps[stage].append(self._step(stage))

    def _step(self, stage: int) -> dict[str, Tensor]:
        state = self.optimizers[stage].state
        named = {name: state[each] for name, each in self.stages[stage].named_parameters() if each in state}
        if self.optimizer == "sgd":
            return {name: each["momentum_buffer"].clone() for name, each in named.items()}
        (one, two), eps = self.optimizers[stage].defaults["betas"], self.optimizers[stage].defaults["eps"]
        found: dict[str, Tensor] = {}
        for name, each in named.items():
            count = each["step"].item()
            root = each["exp_avg_sq"].sqrt() / math.sqrt(1 - two**count) + eps
            found[name] = each["exp_avg"] / root / (1 - one**count)
        return found

    def _micro_batch(self, number: int, x: Tensor, targets: Tensor, sums: list[list[dict[str, Tensor]]]) -> float:
        values: dict[str, Tensor] = {"x": x}
        runs = [self._forward(stage, number, values) for stage in range(len(self.stages))]
        losses, loss = [], 0.0
        for output, rows in zip(runs[-1].outputs, _parts(self.degrees[-1], SIZE), strict=True):
            losses.append(loss_fn(output, targets[rows]))
            loss += losses[-1].item() * (len(output) / BATCH)
        arrived: dict[str, list[Tensor]] = {}
        for stage in reversed(range(len(self.stages))):
            run = runs[stage]
            if self.policy in ("predict", "moving-average"):  # What the graph has saved changes unseen.
                for weights in run.weights:
                    for name, weight in self.weights(stage, number, backward=True).items():
                        weights[name].data.copy_(weight)
            for replica, rows in enumerate(_parts(self.degrees[stage], SIZE)):
                if stage == len(self.stages) - 1:
                    share = torch.full((), len(run.outputs[replica]) / BATCH)
                    torch.autograd.backward(losses[replica], share)
                else:
                    total = _in_order(arrived[self.names[stage]])
                    torch.autograd.backward(run.outputs[replica], total[rows])
                for name, weight in run.weights[replica].items():
                    into = sums[stage][replica]
                    assert weight.grad is not None
                    into[name] = into[name] + weight.grad if name in into else weight.grad
            for feed in run.inputs[0]:
                # The consumers come in descending order.
                gradient = torch.cat([_gradient(inputs[feed]) for inputs in run.inputs])
                arrived.setdefault(feed, []).insert(0, gradient)
        return loss

    def _forward(self, stage: int, number: int, values: dict[str, Tensor]) -> "_Run":
        name, run = self.names[stage], _Run()
        for rows in _parts(self.degrees[stage], SIZE):
            weights = {key: each.clone().requires_grad_() for key, each in self.weights(stage, number).items()}
            # The mini-batch itself is not copied: other alignments in memory round differently.
            inputs = {feed: values[feed][rows] for feed in self.model.feeds[name]}
            for feed in inputs.keys() - {"x"}:
                inputs[feed] = inputs[feed].clone().requires_grad_()
            run.outputs.append(functional_call(self.stages[stage], weights, tuple(inputs.values())))
            run.weights.append(weights)
            run.inputs.append({feed: value for feed, value in inputs.items() if feed != "x"})
        values[name] = torch.cat([output.detach() for output in run.outputs])
        return run


@dataclass
class _Run:
    outputs: list[Tensor] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    inputs: list[dict[str, Tensor]] = field(default_factory=list)


def _copy(stage: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in stage.named_parameters()}


def _parts(degree: int, rows: int) -> Iterable[slice]:
    return [slice(rows * at // degree, rows * (at + 1) // degree) for at in range(degree)]


def _gradient(value: Tensor) -> Tensor:
    assert value.grad is not None
    return value.grad


def _in_order(gradients: list[Tensor]) -> Tensor:
    total = gradients[0]
    for other in gradients[1:]:
        total = total + other
    return total


def train_reference(
    cut: str, policy: str, optimizer: str = "adam", predictor: str = "", segments: Sequence[int] = (5, 2)
) -> dict[str, Any]:
    """Train with the reference; return what `train_segments` returns."""
    kind, devices = CUTS[cut]
    model = model_of(kind)
    for layer in model.modules():
        if isinstance(layer, Checkpointed):
            layer.recomputes = False  # It would read the module's own weights, and not the version of the forward.
    reference = Reference(model, [len(on) for on in devices], optimizer, policy, predictor)
    losses: list[float] = []
    for length in segments:
        losses += reference.segment([batch_of(len(losses) + step) for step in range(length)])
    return {"losses": losses, "weights": dict(reference.model.state_dict())}
