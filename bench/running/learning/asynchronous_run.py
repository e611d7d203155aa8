"""One training of the benchmark of weight policies: eight stages in one process."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import graphpipe as gp
from bench.running.learning.asynchronous_models import STAGES, Text, build_model, next_character_loss
from bench.running.learning.asynchronous_optimizers import OPTIMIZERS, schedule
from graphpipe.errors import NonFiniteLoss
from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans.stage import Predictor, StageEdge, WeightPolicy
from graphpipe.schedule.segments.planned_versions import delays

BATCH, UPDATES = 8, 200
SEGMENT = 50
"""Mini-batches without a flush. The validation loss is measured after each segment."""
LAST = 50
"""The training loss is the mean of this many last mini-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training."""

    model: str
    weights: WeightPolicy
    optimizer: str
    rate: float = 0.0
    """Highest learning rate."""
    seed: int = 0
    predictor: Predictor = ""
    as_chain: bool = False
    """Put the stages of a model with branches one behind the other."""

    @property
    def key(self) -> str:
        """What no other training has."""
        policy = self.predictor or self.weights
        return f"{self.model}{' as a chain' * self.as_chain} | {policy} | {self.optimizer} | {self.rate} | {self.seed}"


def train(case: Case, text: Text) -> dict[str, Any]:
    """Return the row of a training: its losses in nats per character, its delays, and what it took.

    A mini-batch is one micro-batch, as in PipeDream, so that the delay of a stage is the number of stages behind it.
    """
    start = time.process_time()
    model = build_model(case.model, text.characters, case.seed)
    plan = plan_of(model, case, text)
    options = gp.PipelineOptions(lr_scheduler=schedule(UPDATES), rollback=False, check_finite=False, seed=case.seed)
    row: dict[str, Any] = {"key": case.key, "delays": delays(plan), "versions": [it.versions for it in plan.stages]}
    losses: list[float] = []
    validation: list[float] = []

    def build(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[case.optimizer](parameters, case.rate)

    try:
        with gp.Pipeline(plan, model, next_character_loss, build, options=options) as pipeline:
            while len(losses) < UPDATES:
                steps = range(len(losses), len(losses) + SEGMENT)
                losses += pipeline.segment(text.batch(BATCH, case.seed * UPDATES + step) for step in steps)
                loss, _ = pipeline.evaluate(*text.held_out(), gather=False)
                assert loss is not None
                validation.append(loss)
    except NonFiniteLoss:
        row["diverged_after"] = len(losses)
    row |= {"train": mean(losses[-LAST:]) if len(losses) == UPDATES else None, "validation": validation}
    return row | {"processor_seconds": round(time.process_time() - start, 1)}


def plan_of(model: gp.DagModule, case: Case, text: Text) -> gp.Plan:
    """Return a plan with one submodule in each of eight stages, each on a device of its own."""
    ops = [(f"s{at}",) for at in range(STAGES)]
    plan = staged(model, {"text": text.held_out()[0][:1]}, ops, BATCH)
    if case.as_chain:
        known = {(edge.source, edge.target): edge for edge in plan.edges}
        empty = {(at, at + 1): StageEdge(source=at, target=at + 1, bytes_per_sample=0.0) for at in range(STAGES - 1)}
        plan = replace(plan, edges=tuple(edge for _, edge in sorted((empty | known).items())), prediction=None)
    return plan if case.weights == "flush" else under_policy(plan, case.weights, case.predictor)


def staged(model: gp.DagModule, inputs: Mapping[str, Tensor], ops: Sequence[tuple[str, ...]], batch: int) -> gp.Plan:
    """Return a plan with these operators in stages, each on a device of its own. A mini-batch is one micro-batch."""
    cluster = gp.Cluster.preset(f"local:{len(ops)}")
    graph = gp.capture(model, dict(inputs), method="declared")
    stages = [gp.HandStage(ops=some, devices=(at,), micro_batch=batch) for at, some in enumerate(ops)]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch, stages=stages)
