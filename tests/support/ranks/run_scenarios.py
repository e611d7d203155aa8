"""Scenarios for several ranks: importable functions of plain values."""

import os
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from run_models import BATCH, STAGES, Both, Join, contrastive, cross_entropy, fan, fan_batch
from run_plans import captured_plan, hand_split, in_a_chain, in_bursts, plan_of
from torch import Tensor, nn

from graphpipe.errors import NonFiniteLoss
from graphpipe.files.json_body import to_body
from graphpipe.model.dag_module import DagModule
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.step import evaluation
from graphpipe.schedule import Transfer


def build(
    cut: str,
    *,
    head: str = "join",
    dropout: float = 0.0,
    norm: bool = False,
    schedule: str = "1f1b",
    weights: int = 0,
    bursts: Sequence[int] = (),
    **options: Any,
) -> tuple[Pipeline, DagModule]:
    """Return a pipeline of `fan` with one of the cuts in `STAGES`, and the model."""
    model = fan(dropout, norm, head, seed=weights)
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, STAGES[cut], BATCH, schedule)
    plan = in_bursts(plan, bursts) if bursts else plan
    optimizer = options.pop("optimizer", adamw)
    loss_fn = options.pop("loss_fn", cross_entropy if head == "join" else contrastive)
    programs, given = hand_split(model, plan, inputs), PipelineOptions(**options)
    return Pipeline(plan, programs, loss_fn, optimizer, options=given), model


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """A stateful optimizer."""
    return torch.optim.AdamW(parameters, lr=0.05)


def chain_of_two(micro_batch: int) -> Plan:
    """Return a plan of `fan` with two consecutive stages, which keep the fewest samples that 1F1B needs."""
    inputs, _ = fan_batch()
    stages = [(["stem", "left"], [0], micro_batch), (["right", "head"], [1], micro_batch)]
    plan = plan_of(fan(), inputs, stages, BATCH)
    first, second = plan.stages
    return replace(plan, stages=(replace(first, in_flight=2 * micro_batch), replace(second, in_flight=micro_batch)))


def messages_kept(evaluated: int) -> list[tuple[int, int]]:
    """Return how many messages this rank kept at most, and how many it sent: in a step, and in an evaluation.

    Args:
        evaluated: samples of the evaluation. It runs twice, and the second time nothing is lowered.
    """
    model, plan = fan(), chain_of_two(micro_batch=1)
    inputs, targets = fan_batch()
    kept: list[int] = []
    send = RankMessages.send

    def counted(self: RankMessages, values: Sequence[Tensor], peer: int, transfer: Transfer) -> None:
        send(self, values, peer, transfer)
        kept.extend([len(self.sending)] * len(values))

    RankMessages.send = counted
    found: list[tuple[int, int]] = []
    with Pipeline(plan, hand_split(model, plan, inputs), cross_entropy) as pipeline:
        pipeline.step(inputs, targets)
        found.append((max(kept), len(kept)))
        pipeline.evaluate(fan_batch(evaluated)[0])
        kept.clear()
        evaluation.lower = None
        pipeline.evaluate(fan_batch(evaluated)[0])
        found.append((max(kept, default=0), len(kept)))
    return found


def train(cut: str, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train on changing mini-batches; return losses, first gradients, an evaluation and the whole model's state."""
    pipeline, model = build(cut, **options)
    with pipeline:
        losses = [pipeline.step(*fan_batch(seed=1))]
        gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items() if gradient is not None}
        losses += [pipeline.step(*fan_batch(seed=1 + step)) for step in range(1, steps)]
        evaluation, outputs = pipeline.evaluate(*fan_batch(7, seed=99))
        pipeline.sync_model()
    return {
        "losses": losses,
        "gradients": gradients,
        "evaluation": evaluation,
        "outputs": outputs,
        "state": dict(model.state_dict()),
    }


def train_beside_idle_ranks(folder: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Train on devices 0 and 1, and on devices 1 and 2, with a checkpoint that is loaded; return also the warnings."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for first in (0, 1):
        stages = [(["stem", "left"], [first], 4), (["right", "head"], [first + 1], 3)]
        model, (inputs, _) = fan(), fan_batch()
        plan = plan_of(model, inputs, stages, BATCH)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy, adamw)
        with pipeline, Checkpoints(pipeline, f"{folder}/{first}") as checkpoints:
            losses = [pipeline.step(*fan_batch(seed=1))]
            checkpoints.save()
            losses += [pipeline.step(*fan_batch(seed=2))]
            checkpoints.load()
            losses += [pipeline.step(*fan_batch(seed=2))]
            pipeline.recording = True
            losses += [pipeline.step(*fan_batch(seed=3))]
            evaluation, outputs = pipeline.evaluate(*fan_batch(7, seed=99))
            spans = len(pipeline.trace().spans)
            pipeline.sync_model()
        assert losses[1] == losses[2]
        assert spans
        result = {"losses": losses, "evaluation": evaluation, "outputs": outputs, "state": dict(model.state_dict())}
        found.append((result, [str(each.message) for each in caught]))
    return found


def train_from_unequal_weights(cut: str) -> dict[str, Any]:
    """Train with weights that differ between ranks before the pipeline is built."""
    return train(cut, 2, {"weights": dist.get_rank()})


def fail_in_loss(cut: str) -> float:
    """Raise in the user's loss function."""

    def broken(output: Tensor, targets: Tensor) -> Tensor:
        raise KeyError("labels")

    pipeline, _ = build(cut, loss_fn=broken)
    return pipeline.step(*fan_batch())


def fail_and_linger(cut: str, folder: str) -> float:
    """Raise in the user's loss function, and keep running until all other ranks have ended."""
    try:
        return fail_in_loss(cut)
    except KeyError:
        wait_for_others(folder)
        raise


def wait_for_others(folder: str) -> None:
    """Wait until every other rank has left its result, 90 seconds at most."""
    end = time.monotonic() + 90
    others = [Path(folder) / f"{rank}.pt" for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    while time.monotonic() < end and not all(path.exists() for path in others):
        time.sleep(0.05)


def die(cut: str, rank: int) -> float:
    """Be killed in the second step."""
    pipeline, _ = build(cut)
    pipeline.step(*fan_batch())
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return pipeline.step(*fan_batch())


def stall(cut: str, rank: int, folder: str) -> float:
    """Never start the second step."""
    pipeline, _ = build(cut, timeout_seconds=3.0)
    pipeline.step(*fan_batch())
    if dist.get_rank() == rank:
        wait_for_others(folder)
        return 0.0
    return pipeline.step(*fan_batch())


def differ(cut: str, what: str) -> None:
    """Build with a setting that differs between ranks."""
    odd = dist.get_rank() == 1
    values: dict[str, tuple[Any, Any]] = {
        "seed": (7, 8),
        "schedule": ("gpipe", "1f1b"),
        "clip_norm": (1.0, 2.0),
        "loss_fn": (cross_entropy, contrastive),
        "model": (0.1, 0.3),
    }
    own = values[what][not odd]
    if what == "model":
        plan = captured_plan(fan(), fan_batch()[0], STAGES[cut], BATCH)
        Pipeline(plan, fan(own), cross_entropy, adamw)
    build(cut, **{what: own})


def not_a_number(cut: str) -> dict[str, Any]:
    """Step on a mini-batch with a NaN at the stem, then on a good one."""
    pipeline, model = build(cut)
    inputs, targets = fan_batch()
    spoiled = {**inputs, "x": inputs["x"].clone()}
    spoiled["x"][5, 0] = float("nan")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = ""
    try:
        pipeline.step(spoiled, targets)
    except NonFiniteLoss as error:
        message = str(error)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    return {"message": message, "changed": changed, "loss": pipeline.step(inputs, targets)}


def traced(cut: str) -> dict[str, Any]:
    """Return the measured trace of a step as plain values."""
    pipeline, _ = build(cut, record=True)
    pipeline.step(*fan_batch())
    pipeline.step(*fan_batch())
    return to_body(pipeline.trace())


class Ordinary(nn.Module):
    """The same branches as `fan`, as a user would write them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout))
        self.left = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
        self.right = Both(8, dropout)
        self.head = Join(8, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        hidden = self.stem(x)
        return self.head(self.left(hidden), self.right(hidden * 0.5, tokens))


def train_captured(cut: str) -> list[dict[str, Any]]:
    """Train an ordinary module that graphpipe captures and splits, as a graph and as chains of stages."""
    torch.manual_seed(0)
    plan = captured_plan(Ordinary(0.3), fan_batch()[0], STAGES[cut], BATCH)
    return [_train_captured(each) for each in (plan, in_a_chain(plan), in_a_chain(plan, "gpipe"))]


def _train_captured(plan: Plan) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Ordinary(0.3)
    with Pipeline(plan, model, cross_entropy, adamw) as pipeline:
        losses = [pipeline.step(*fan_batch(seed=step)) for step in range(2)]
        evaluation, _ = pipeline.evaluate(*fan_batch(7, seed=9))
        pipeline.sync_model()
    return {"losses": losses, "evaluation": evaluation, "state": dict(model.state_dict())}
