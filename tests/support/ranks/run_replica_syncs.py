"""Trains with each data-parallel engine: importable functions of plain values, for several ranks."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import run_shared
import torch
import torch.distributed as dist
from run_checkpoints import STEPS, train_on, two_groups
from run_models import BATCH, STAGES, Both, Join, cross_entropy, fan_batch
from run_plans import StageLine, captured_plan, with_states
from run_splits import in_halves
from shared_captures import captured_of
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model import DagModule
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.comm.world import join
from graphpipe.run.stage.losses.divided_forward import only_named
from graphpipe.run.weights.registry import REPLICA_SYNCS
from graphpipe.run.weights.replica_sync import StageReplicas
from graphpipe.run.weights.sharded_tensors import own, whole
from graphpipe.run.weights.zero1 import local_optimizer

CUTS: dict[str, Sequence[StageLine]] = {
    "replicas": STAGES["replicas"],
    "both": [(["stem"], [0], 4), (["left", "right"], [1, 2], 4), (["head"], [3], 6)],
    "four": [(["stem", "left", "right", "head"], [0, 1, 2, 3], 4)],
    "overlap": [(["stem", "left"], [0, 1], 4), (["right", "head"], [1, 2], 6)],
}
SYNCS: dict[str, dict[str, Any]] = {
    "allreduce": {"engine": "allreduce"},
    "ddp": {"engine": "ddp"},
    "fsdp2": {"engine": "fsdp2"},
    "allreduce, zero": {"engine": "allreduce", "shard_optimizer": True},
    "ddp, zero": {"engine": "ddp", "shard_optimizer": True},
    "planned": {"states": ("optimizer", "all")},
}
"""Options of a pipeline. `states` are of the plan's stages, in turn."""
BY_LAYER: dict[str, dict[str, Any]] = {"fsdp2-layers": {"engine": "fsdp2-layers"}}
"""The same for a synchronisation that cannot be combined with everything."""


class Tempered(nn.Module):
    """Scores scaled by a single number, which cannot be sharded; one parameter never gets a gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = Join(width, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.join(left, right) * self.scale


def model_of(*, norm: bool = False) -> DagModule:
    """stem -> left, right(+ tokens, a frozen embedding) -> head.

    A layer before a batch norm does not have a bias. Its gradient would be rounding errors only, which Adam scales to
    full steps, so that results would depend on the processor.
    """
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if norm else []
    model = DagModule(
        {
            "stem": nn.Sequential(nn.Linear(5, 8), nn.Tanh()),
            "left": nn.Sequential(nn.Linear(8, 8, bias=not norm), *middle, nn.ReLU(inplace=True)),
            "right": Both(8, 0.0),
            "head": Tempered(8),
        },
        inputs={"stem": ["x"], "left": ["stem"], "right": ["stem", "tokens"], "head": ["left", "right"]},
    )
    model.get_submodule("right.embed").requires_grad_(False)
    return model


@cache
def _plan(cut: str, norm: bool) -> Plan:
    return captured_plan(model_of(norm=norm), fan_batch()[0], CUTS[cut], BATCH)


def pipeline_of(
    cut: str, kind: str, *, schedule: str = "1f1b", recompute: bool = False, norm: bool = False, **options: Any
) -> tuple[Pipeline, DagModule]:
    """Return a pipeline of one of the `CUTS`, by one of the `SYNCS`, and the model."""
    model = model_of(norm=norm)
    plan = in_halves(_plan(cut, norm), schedule)
    if recompute:
        plan = replace(plan, stages=tuple(replace(stage, recompute="full") for stage in plan.stages))
    given: dict[str, Any] = {"clip_norm": 0.5, "captured": captured_of(plan)} | (SYNCS | BY_LAYER)[kind] | options
    plan = with_states(plan, given.pop("states", ()))
    loss_fn, optimizer = given.pop("loss_fn", cross_entropy), given.pop("optimizer", two_groups)
    return Pipeline(plan, model, loss_fn, optimizer, options=PipelineOptions(**given)), model


def train(cut: str, kind: str, steps: int = 3, **options: Any) -> dict[str, Any]:
    """Train; return the losses, the first gradients (clipped), an evaluation, and the whole state."""
    pipeline, model = pipeline_of(cut, kind, **options)
    # Losses and gradients are compared with plain PyTorch, so one cut suffices for the check of the first step.
    with nullcontext() if cut == "overlap" and "zero" not in kind else only_named(), pipeline:
        losses = [pipeline.step(*fan_batch(seed=0))]
        gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
        losses += [pipeline.step(*fan_batch(seed=step)) for step in range(1, steps)]
        evaluation, _ = pipeline.evaluate(*fan_batch(7, seed=99))  # some replicas do not get a sample
        pipeline.sync_model()
        backwards = pipeline.backwards()
    return {
        "backwards": backwards,
        "losses": losses,
        "gradients": gradients,
        "evaluation": evaluation,
        "state": {name: each.clone() for name, each in model.state_dict().items()},
    }


def train_smaller(cut: str, kinds: list[str], sizes: list[int]) -> dict[str, dict[str, Any] | str]:
    """Train on mini-batches of these sizes with each engine; return losses and last gradients, or what was refused."""
    found: dict[str, dict[str, Any] | str] = {}
    for kind in kinds:
        pipeline, _ = pipeline_of(cut, kind, clip_norm=None)
        with only_named(), pipeline:
            try:
                losses = [pipeline.step(*fan_batch(size)) for size in sizes]
            except InvalidInput as error:
                found[kind] = str(error)
                continue
            gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
        found[kind] = {"losses": losses, "gradients": gradients}
    return found


def train_smaller_unpartitioned(sizes: list[int]) -> dict[str, Any]:
    """Return what `train_smaller` returns, of plain PyTorch."""
    model = model_of()
    optimizer = two_groups([each for each in model.parameters() if each.requires_grad])
    losses: list[float] = []
    for size in sizes:
        inputs, targets = fan_batch(size)
        optimizer.zero_grad()
        loss = cross_entropy(model(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {"losses": losses, "gradients": gradients}


def train_all(cut: str, kinds: list[str], schedules: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Train with each engine under each schedule, one after another."""
    return {
        f"{kind}, {schedule}": train(cut, kind, schedule=schedule, **options)
        for kind in kinds
        for schedule in schedules
    }


def train_unpartitioned(*, norm: bool = False, steps: int = 3) -> dict[str, Any]:
    """Train the unpartitioned model in plain PyTorch; return what `train` returns."""
    model = model_of(norm=norm)
    optimizer = two_groups([each for each in model.parameters() if each.requires_grad])
    losses: list[float] = []
    gradients: list[dict[str, Tensor]] = []
    for step in range(steps):
        inputs, targets = fan_batch(seed=step)
        optimizer.zero_grad()
        loss = cross_entropy(model(**inputs), targets)
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients.append({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})
        optimizer.step()
    with torch.no_grad():
        inputs, targets = fan_batch(7, seed=99)
        evaluation = cross_entropy(copy.deepcopy(model).eval()(**inputs), targets).item()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    return {
        "losses": losses,
        "gradients": gradients[0],
        "evaluation": evaluation,
        "state": state,
    }


def state_bytes(cut: str) -> dict[str, list[int]]:
    """Return, by engine, the bytes of weights, of gradients and of optimizer state on this rank after a step."""
    found: dict[str, list[int]] = {}
    for kind in SYNCS:
        pipeline, _ = pipeline_of(cut, kind)
        with only_named(), pipeline:
            pipeline.step(*fan_batch())
            optimizers = pipeline.state.optimizers
            slots = [
                each
                for scheduled in optimizers
                for kept in (*scheduled.optimizer.state.values(), *local_optimizer(scheduled.optimizer).state.values())
                for each in kept.values()
            ]
            groups = [group for scheduled in optimizers for group in scheduled.optimizer.param_groups]
            parameters = [parameter for group in groups for parameter in group["params"]]
            gradients = [each.grad for each in parameters if each.grad is not None]
            found[kind] = [_held(parameters), _held(gradients), _held(slots)]
    return found


def replaced_bytes(cut: str) -> list[int]:
    """Return, for each way to shard, the bytes of parameters in whose place this rank trains shards."""
    found: list[int] = []
    for kind in ("fsdp2", *BY_LAYER):
        pipeline, _ = pipeline_of(cut, kind)
        with pipeline:
            syncs = pipeline._worker.syncs.values()  # pyright: ignore[reportPrivateUsage]
            trained = {id(each) for sync in syncs for module in sync.replicas.modules for each in module.parameters()}
            held = [each for sync in syncs for parameters in sync.replicas.parameters for each in parameters]
            found.append(sum(each.nbytes for each in held if id(each) not in trained))
    return found


def _held(tensors: list[Any]) -> int:
    distinct = {id(each): own(each) for each in tensors if each.ndim}
    return sum(each.nbytes for each in distinct.values())


def save_and_resume(cut: str, folder: str, kinds: list[str]) -> dict[str, dict[str, Any]]:
    """Train with each engine, with a checkpoint halfway; resume from it with the same engine, and with every other."""
    found: dict[str, dict[str, Any]] = {}
    for saver in kinds:
        pipeline, model = pipeline_of(cut, saver)
        with pipeline:
            checkpoints = Checkpoints(pipeline, f"{folder}/{saver}")
            with only_named():
                for step in range(3):
                    pipeline.step(*fan_batch(seed=step))
            checkpoints.save()
            checkpoints.wait()
            found[saver] = train_on(pipeline, model)
        for loader in kinds:
            found[f"{saver} -> {loader}"] = resume(cut, f"{folder}/{saver}", loader)
    return found


def resume(cut: str, folder: str, kind: str) -> dict[str, Any]:
    """Resume from a checkpoint with a model of other initial weights."""
    pipeline, model = pipeline_of(cut, kind)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)
    training = Checkpoints(pipeline, folder).load()
    assert training.step == pipeline.steps < STEPS
    with only_named():
        return train_on(pipeline, model)


def save_shared(kinds: list[str], folder: str) -> dict[str, dict[str, Any]]:
    """Train a model whose stages share parameters with every engine. Save with one, and resume with the next."""
    found: dict[str, dict[str, Any]] = {}
    for kind, following in zip(kinds, [*kinds[1:], kinds[0]], strict=True):
        with only_named():
            found[kind] = run_shared.train("crossed", 3, {"clip_norm": 0.1, **SYNCS[kind]})
        pipeline, _ = run_shared.build("crossed", clip_norm=0.1, **SYNCS[kind])
        with only_named(), pipeline, Checkpoints(pipeline, f"{folder}/{kind}") as checkpoints:
            pipeline.step(*run_shared.batch())
            checkpoints.save()
        pipeline, model = run_shared.build("crossed", weights=7, clip_norm=0.1, **SYNCS[following])
        with only_named(), pipeline:
            Checkpoints(pipeline, f"{folder}/{kind}").load()
            losses = [pipeline.step(*run_shared.batch(seed=1 + step)) for step in range(1, 3)]
            pipeline.sync_model()
        state = {name: each.clone() for name, each in model.state_dict().items()}
        found[f"{kind} -> {following}"] = {"losses": losses, "gradients": {}, "state": state}
    return found


def reduce_some(kind: str) -> list[list[float] | None]:
    """Return the gradients of three parameters; only rank 0 uses the second, and not in the last backward."""
    world = join("cpu", 30.0)
    world.open_group((0, 1))
    parameters = [nn.Parameter(torch.tensor([float(number)])) for number in (1, 2, 3)]
    module = nn.ParameterList(parameters)
    replicas = StageReplicas(
        world=world,
        ranks=(0, 1),
        stage="some",
        original=copy.deepcopy(module),
        modules=(module,),
        parameters=(tuple(parameters),),
    )
    sync = REPLICA_SYNCS[kind](replicas)
    sync.begin()
    first, second, _ = module
    (3 * first + (5 * second if world.rank == 0 else 0)).sum().backward()
    root = (10 * first).sum()
    with sync.last_backward([root]):
        root.backward()
    sync.reduce()
    sync.end()
    gradients = [None if each.grad is None else whole(each.grad).tolist() for each in module]
    world.leave()
    return gradients


def differ(cut: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Return the error if rank 1 is given other options than the rest."""
    return [refused(cut, theirs if dist.get_rank() == 1 else ours) for ours, theirs in pairs]


def refused(cut: str, options: dict[str, Any]) -> str:
    """Return the error for options that exclude each other."""
    try:
        pipeline_of(cut, "allreduce", **options)
    except InvalidInput as error:
        return str(error)
    return ""
