"""A model whose submodules share weights, and its training: importable functions of plain values."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from run_plans import StageLine, plan_for, with_states
from run_splits import in_halves
from shared_captures import shared_capture
from torch import Tensor, nn

from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints

BATCH, WORDS = 12, 13


class Translator(nn.Module):
    """Two encoders and a decoder; one matrix embeds on both sides and scores the words; one layer is called twice."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.source = nn.Embedding(WORDS, 8)
        self.target = nn.Embedding(WORDS, 8)
        self.encode = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout))
        self.decode = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout))
        self.mix = nn.Linear(8, 8)
        self.score = nn.Linear(8, WORDS)
        self.target.weight = self.score.weight = self.source.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded = self.mix(self.encode(self.source(source)).mean(1, keepdim=True))
        return self.score(self.mix(self.decode(self.target(target)) + encoded))


CUTS: dict[str, list[StageLine]] = {
    "four": [
        (["source", "encode", "mix"], [0], 6),
        (["target"], [1], 4),
        (["decode", "mix#2"], [2], 3),
        (["score"], [3], 2),
    ],
    "unequal": [(["source", "encode", "mix"], [0, 1], 4), (["target", "decode", "mix#2", "score"], [2], 6)],
    "crossed": [(["source", "encode", "mix"], [0, 1], 6), (["target", "decode", "mix#2", "score"], [1, 0], 4)],
    "beside": [
        (["source", "encode", "mix"], [0], 6),
        (["target", "decode"], [0, 1], 4),
        (["mix#2"], [1], 6),
        (["score"], [0], 4),
    ],
}
"""Ways to cut it: operators, devices, micro-batch."""


def batch(seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (3, BATCH, 5), generator=generator)
    return {"source": words[0], "target": words[1]}, words[2]


def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of the mean over words."""
    return nn.functional.cross_entropy(output.transpose(1, 2), targets)


def adamw(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.AdamW(parameters, lr=0.05)


def build(
    cut: str, *, weights: int = 0, dropout: float = 0.0, schedule: str = "1f1b", **options: Any
) -> tuple[Pipeline, Translator]:
    """Return a pipeline of the model, cut one of the `CUTS` ways, and the model."""
    torch.manual_seed(weights)
    model = Translator(dropout)
    opaque = sorted({name for ops, _, _ in CUTS[cut] for name in ops if "#" not in name})
    captured = shared_capture(model, batch()[0], opaque)
    plan = with_states(in_halves(plan_for(captured.graph, CUTS[cut], BATCH), schedule), options.pop("states", ()))
    optimizer = options.pop("optimizer", adamw)
    return Pipeline(plan, model, loss_fn, optimizer, options=PipelineOptions(captured=captured, **options)), model


def train(cut: str, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train on changing mini-batches; return losses, first gradients and the whole model's state."""
    pipeline, model = build(cut, **options)
    with pipeline:
        losses = [pipeline.step(*batch(seed=1))]
        gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
        losses += [pipeline.step(*batch(seed=1 + step)) for step in range(1, steps)]
        own = {name: each.detach().clone() for name, each in model.named_parameters()}
        pipeline.sync_model()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    return {"losses": losses, "gradients": gradients, "own": own, "state": state}


def train_from_unequal_weights(cut: str) -> dict[str, Any]:
    """Train with weights that differ from rank to rank before the pipeline is built."""
    return train(cut, 2, {"weights": dist.get_rank()})


def train_unpartitioned(steps: int, clip_norm: float | None = None) -> dict[str, Any]:
    """Train the unpartitioned model as `train` does."""
    torch.manual_seed(0)
    model = Translator()
    optimizer = adamw(list(model.parameters()))
    losses: list[float] = []
    gradients: dict[str, Tensor | None] = {}
    for step in range(steps):
        inputs, targets = batch(seed=1 + step)
        optimizer.zero_grad()
        loss = loss_fn(model(**inputs), targets)
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        losses.append(loss.item())
        gradients = gradients or {name: copy.deepcopy(each.grad) for name, each in model.named_parameters()}
        optimizer.step()
    return {"losses": losses, "gradients": gradients, "state": dict(model.state_dict())}


def save(cut: str, folder: str) -> None:
    """Train a step and save it."""
    pipeline, _ = build(cut)
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        pipeline.step(*batch())
        checkpoints.save()


def resume(cut: str, folder: str) -> dict[str, Any]:
    """Resume from the last checkpoint with other initial weights, and train two steps."""
    pipeline, model = build(cut, weights=7)
    with pipeline:
        Checkpoints(pipeline, folder).load()
        losses = [pipeline.step(*batch(seed=1 + step)) for step in range(1, 3)]
        pipeline.sync_model()
    return {"losses": losses, "state": {name: each.clone() for name, each in model.state_dict().items()}}
