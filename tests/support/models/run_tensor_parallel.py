"""Trainings in which several ranks share each replica of a stage: importable functions of plain values."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from exchanges import exchanges
from models_to_share import LENGTH, MODELS, OPAQUE, VOCABULARY
from shared_captures import shared_capture
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.shards.logits.divided_logits import before_loss
from graphpipe.run.inference.inference_pipeline import InferencePipeline
from graphpipe.run.stage.losses.divided_forward import only_named

SAMPLES = 4
Cut = Sequence[tuple[Sequence[str], Sequence[int], int, int]]
"""For each stage: patterns of operators, devices, how many of them share a replica, and the micro-batch."""


def batch(step: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens (samples, length) and the next tokens."""
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with a state."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@cache
def captured_of(name: str) -> Captured:
    """Return the capture of a model in double precision."""
    return shared_capture(MODELS[name]().double(), {"tokens": batch()[0]}, OPAQUE.get(name, ()))


@cache
def graph_of(name: str) -> gp.Graph:
    """Return the graph of a model with its layouts, once in each process."""
    return gp.with_shards(captured_of(name).graph, MODELS[name]().double(), sequence_parallel=True)


@cache
def graph_with_logits(name: str) -> gp.Graph:
    """Return the graph of a model whose ranks keep their parts of the logits for the loss."""
    model = MODELS[name]().double()
    return gp.with_shards(captured_of(name).graph, model, sequence_parallel=True, loss_fn=loss_fn)


def plan_of(
    name: str,
    cut: Cut,
    schedule: str | None = "1f1b",
    *,
    inference: bool = False,
    sequence_parallel: bool = False,
    logits: bool = False,
    **changes: Any,
) -> gp.Plan:
    """Return a plan of a model with some stages.

    Args:
        name: of the model.
        cut: the stages.
        schedule: of the plan, if it trains.
        inference: whether it answers requests.
        sequence_parallel: whether ranks divide the sequence.
        logits: whether they keep their parts of the logits for the loss.
        changes: fields of all stages.
    """
    graph = graph_with_logits(name) if logits else graph_of(name)
    cluster = gp.Cluster.preset(f"local:{1 + max(device for _, devices, _, _ in cut for device in devices)}")
    costs = gp.estimate(graph, cluster)
    stages = [
        gp.HandStage(ops=tuple(ops), devices=tuple(on), micro_batch=size, tensor=degree, **changes)
        for ops, on, degree, size in cut
    ]
    schedule = None if inference else schedule
    return gp.hand_plan(
        graph,
        costs,
        cluster,
        batch_size=SAMPLES,
        stages=stages,
        schedule=schedule,
        inference=inference,
        sequence_parallel=sequence_parallel,
    )


def requests(bad: Sequence[tuple[int, int]] = ()) -> list[Tensor]:
    """Return three requests of 3, 1 and 4 samples, some of whose samples have a word that is not in the vocabulary."""
    tokens = [batch(step)[0][:samples].clone() for step, samples in enumerate((3, 1, 4))]
    for request, sample in bad:
        tokens[request][sample, 1] = VOCABULARY
    return tokens


def answer_all(cases: Sequence[tuple[str, gp.Plan, Sequence[tuple[int, int]]]]) -> list[Any]:
    """Answer requests by models and their plans; for each case the outputs and failures, or None."""
    found: list[Any] = []
    for name, plan, bad in cases:
        model = MODELS[name]().double()
        options = gp.PipelineOptions(captured=captured_of(name))
        with InferencePipeline(plan, model, options=options) as pipeline:
            answers = [*pipeline.map(requests(bad))]
            kept = [(each.outputs, [it.sample for it in each.failed]) for each in answers if each is not None]
            found.append(kept if pipeline.answers else None)
    return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training."""

    name: str
    """Of the model."""
    plan: gp.Plan
    steps: int = 2
    folder: str = ""
    """Where a checkpoint is saved after the last step; empty: nowhere."""
    resume: str = ""
    """The checkpoints that it begins from."""
    captured: str = ""
    """The file of its capture, so that no rank needs to capture it."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the pipeline."""
    dropout: float = 0.0
    """Inside what ranks share, and behind it."""
    checks: bool = False
    """Whether the first step looks for a mixture of samples, which takes as long as five steps."""


def train(case: Case) -> dict[str, Any]:
    """Train some steps; return losses, norms, the last gradients, how much is held, and all weights."""
    model = MODELS[case.name]().double()
    dropped = drop(model, case.dropout)
    captured = load_capture(Path(case.captured), case.plan.graph) if case.captured else captured_of(case.name)
    options = gp.PipelineOptions(timeout_seconds=20, captured=captured, **case.options)
    found: dict[str, Any] = {"losses": [], "norms": []}
    checks = nullcontext() if case.checks else only_named()
    with checks, gp.Pipeline(case.plan, model, loss_fn, sgd, options=options) as pipeline:
        if case.resume:
            gp.Checkpoints(pipeline, case.resume).load()
        held = {
            id(each): each for replica in pipeline._worker.replicas.values() for each in replica.module.parameters()
        }
        found["bytes"] = sum(each.nbytes for each in held.values())
        if len(case.plan.stages) == 1:
            found |= {"saved": saved_bytes(pipeline, batch()[0]), "saved by loss": saved_by_loss(pipeline, *batch())}
        for step in range(pipeline.steps, pipeline.steps + case.steps):
            inputs, targets = batch(step)
            found["losses"].append(pipeline.step({"tokens": inputs}, targets))
            found["norms"].append(pipeline.gradient_norms[0])
        found["dropped"], found["backwards"] = [*dropped], pipeline.backwards()
        found["gradients"] = pipeline.gradients()
        found["held"] = sum(each.numel() for each in pipeline.gradients().values() if each is not None)
        if case.folder:
            with gp.Checkpoints(pipeline, case.folder) as checkpoints:
                checkpoints.save()
        inputs, targets = batch(7)
        found["evaluated"] = pipeline.evaluate({"tokens": inputs}, targets)[0]
        pipeline.sync_model()
        found["state"] = {key: value.clone() for key, value in model.state_dict().items()}
        with exchanges() as noted:
            pipeline.step({"tokens": inputs}, targets)
        found["exchanged"] = [tuple(each) for each in noted]
    return found


def saved_bytes(pipeline: gp.Pipeline, tokens: Tensor) -> int:
    """Return the bytes that a forward of the whole model keeps for its backward on this rank, without parameters."""
    (replica,) = pipeline._worker.replicas.values()
    kept = [*replica.module.parameters(), tokens]
    return saved_by(lambda: replica.program({"tokens": tokens}), kept)


def saved_by_loss(pipeline: gp.Pipeline, tokens: Tensor, targets: Tensor) -> int:
    """Return the bytes that the loss keeps for its backward on this rank, without the model's output."""
    (replica,) = pipeline._worker.replicas.values()
    with before_loss():
        output = cast("Tensor", replica.program({"tokens": tokens})[1])
    return saved_by(lambda: loss_fn(output, targets), [getattr(output, "columns", output), targets])


def saved_by(compute: Callable[[], object], others: Sequence[Tensor]) -> int:
    """Return the bytes of the tensors that a computation saves for its backward, without some that are kept anyway."""
    known = {each.untyped_storage().data_ptr() for each in others}
    kept: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        compute()
    return sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in known)


def drop(model: nn.Module, rate: float) -> list[Tensor]:
    """Let a model drop values, and return a list to which every dropout will add what it has dropped."""
    dropped: list[Tensor] = []
    for part in model.modules():
        if isinstance(part, nn.Dropout) and rate:
            part.p = rate
            part.register_forward_hook(lambda part, given, result: dropped.append(torch.eq(result, 0)))
    return dropped


def train_all(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Train each of the cases."""
    return [train(case) for case in cases]


def train_segments(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Train a segment of each of the cases, whose plans update weights without a flush; return losses and weights."""
    found: list[dict[str, Any]] = []
    for case in cases:
        model = MODELS[case.name]().double()
        captured = load_capture(Path(case.captured), case.plan.graph) if case.captured else captured_of(case.name)
        options = gp.PipelineOptions(timeout_seconds=20, captured=captured, **case.options)
        given = [({"tokens": tokens}, targets) for tokens, targets in map(batch, range(case.steps))]
        with only_named(), gp.Pipeline(case.plan, model, loss_fn, sgd, options=options) as pipeline:
            losses = pipeline.segment(given)
            pipeline.sync_model()
            found.append({"losses": losses, "state": {key: each.clone() for key, each in model.state_dict().items()}})
    return found


@cache
def train_plainly(name: str, steps: int = 2, clip_norm: float = 1e9) -> dict[str, Any]:
    """Train without a pipeline."""
    model = MODELS[name]().double()
    optimizer = sgd(model.parameters())
    found: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        found["losses"].append(float(loss.detach()))
        found["norms"].append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm)))
        optimizer.step()
    found["gradients"] = {key: each.grad for key, each in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        inputs, targets = batch(7)
        found["evaluated"] = float(loss_fn(model(inputs), targets))
    found["state"] = dict(model.state_dict())
    return found
