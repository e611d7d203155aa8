"""Trainings whose mini-batches differ in length: importable functions of plain values, for one rank or several."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from run_plans import StageLine, plan_for
from run_replica_syncs import SYNCS
from shared_captures import captured_of, shared_capture
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import GraphPipeError
from graphpipe.graph import Input
from graphpipe.model.capture.capture import Captured, capture_again
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints

BATCH, WORDS = 12, 32
LENGTHS = (16, 24, 16)
LAYERS = [f"layers.{index}.{part}" for index in range(4) for part in ("attention", "feed_forward")]
GPT: dict[str, list[StageLine]] = {
    "two": [(["embedding", *LAYERS[:3]], [0], 4), ([*LAYERS[3:], "head.vocabulary"], [1], 3)],
    "four": [
        (["embedding", *LAYERS[:2]], [0, 1], 6),
        (LAYERS[2:5], [2], 4),
        ([*LAYERS[5:], "head.vocabulary"], [3], 3),
    ],
}


class Masked(nn.Module):
    """Makes a mask of the length in its forward, and reads a parameter. Long samples go through more layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.mix = nn.Linear(8, 8)
        self.more = nn.Linear(8, 8)
        self.score = nn.Linear(8, WORDS)
        self.scale = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        length = tokens.shape[1]
        mask = torch.ones(length, length).tril() / length
        hidden = self.mix((mask @ hidden) * self.scale)
        if length > 30:
            hidden = self.more(hidden)
        return self.score(hidden + mask.sum(1, keepdim=True))


MASKED: list[StageLine] = [(["embed"], [0, 1], 4), (["mix"], [2], 4), (["score"], [3], 3)]


def batch(length: int, seed: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return tokens, and the tokens that follow."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (samples, length + 1), generator=generator)
    return words[:, :-1], words[:, 1:]


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of the mean over words."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adam(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-3)


def model_of(name: str) -> nn.Module:
    """Return gpt-small, or `Masked`."""
    torch.manual_seed(0)
    return Masked() if name == "masked" else zoo_model("gpt-small").module


@cache
def _plan(cut: str) -> Plan:
    stages = MASKED if cut == "masked" else GPT[cut]
    opaque = [name for names, _, _ in stages for name in names]
    return plan_for(shared_capture(model_of(cut), batch(LENGTHS[0], 0)[0], opaque).graph, stages, BATCH)


def build(cut: str, kind: str = "allreduce", **options: Any) -> tuple[Pipeline, nn.Module]:
    """Return a pipeline planned for the first length, and the model."""
    model = model_of(cut)
    plan, optimizer = _plan(cut), options.pop("optimizer", adam)
    given = PipelineOptions(captured=captured_of(plan), **SYNCS[kind], **options)
    return Pipeline(plan, model, loss_fn, optimizer, options=given), model


def train(cut: str, kinds: list[str], options: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Train a step of each length by each engine; return, per step, the loss and the gradients of all ranks' stages.

    The first engine's captures of other lengths are used for the others too, because each one takes a second.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    made: dict[tuple[Input, ...], Captured] = {}

    def capture(module: nn.Module, inputs: tuple[Input, ...], *given: Any, **options: Any) -> Captured:
        if inputs not in made:
            made[inputs] = capture_again(module, inputs, *given, **options)
        return made[inputs]

    for kind in kinds:
        pipeline, _ = build(cut, kind, **options)
        with pipeline, mock.patch("graphpipe.model.split.split_for_shapes.capture_again", capture):
            found[kind] = []
            for step, length in enumerate(LENGTHS):
                loss = pipeline.step(*batch(length, step))
                gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
                found[kind].append({"loss": loss, "gradients": gradients})
            loss, logits = pipeline.evaluate(*batch(8, 99, samples=5))
            assert logits.shape == (5, 8, WORDS)
            found[kind].append({"loss": loss, "gradients": {}})
    return found


def train_unpartitioned(cut: str) -> list[dict[str, Any]]:
    """Train the unpartitioned model as `train` does."""
    model = model_of(cut)
    optimizer = adam(list(model.parameters()))
    found: list[dict[str, Any]] = []
    for step, length in enumerate(LENGTHS):
        tokens, targets = batch(length, step)
        optimizer.zero_grad()
        loss = loss_fn(model(tokens), targets)
        loss.backward()
        gradients = {name: copy.deepcopy(each.grad) for name, each in model.named_parameters() if each.grad is not None}
        found.append({"loss": loss.item(), "gradients": gradients})
        optimizer.step()
    with torch.no_grad():
        tokens, targets = batch(8, 99, samples=5)
        found.append({"loss": loss_fn(model(tokens), targets).item(), "gradients": {}})
    return found


def disagree(cut: str, length: int, samples: int) -> str:
    """Train a step together; then give rank 1 another mini-batch. Return the error message."""
    pipeline, _ = build(cut)
    pipeline.step(*batch(LENGTHS[0], 0))
    odd = dist.get_rank() == 1
    try:
        pipeline.step(*batch(length if odd else LENGTHS[0], 1, samples if odd else BATCH))
    except GraphPipeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def disagree_on_values() -> str:
    """Give every rank another mini-batch of the same shape in the first step. Return the error message."""
    pipeline, _ = build("two")
    try:
        pipeline.step(*batch(LENGTHS[0], seed=dist.get_rank()))
    except GraphPipeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(cut: str, kind: str, length: int) -> str:
    """Return the error message for a length that the pipeline cannot train on."""
    pipeline, _ = build(cut, kind)
    try:
        pipeline.step(*batch(length, 0))
    except GraphPipeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def resume(cut: str, folder: str) -> tuple[list[float], list[float]]:
    """Return the losses of an unbroken training from the second length on, and those of one resumed before it."""
    pipeline, _ = build(cut)
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        pipeline.step(*batch(LENGTHS[0], 0))
        checkpoints.save()
        unbroken = [pipeline.step(*batch(length, step)) for step, length in enumerate(LENGTHS) if step]
    pipeline, _ = build(cut)
    with pipeline:
        Checkpoints(pipeline, folder).load()
        return unbroken, [pipeline.step(*batch(length, step)) for step, length in enumerate(LENGTHS) if step]
