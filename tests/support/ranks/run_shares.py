"""Ranks that are given only what they need of a mini-batch."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import hand_split, plan_of
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.plans.stage import WeightPolicy
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.schedule.segments.planned_versions import with_policy

STEPS, SAMPLES = 4, 20
"""Samples of an evaluation: more than a mini-batch, and no multiple of it."""

LOSSES = {
    "mean": lambda outputs, targets: (outputs - targets[:, None].float()).square().mean(),
    "ignored": partial(nn.functional.cross_entropy, ignore_index=2, weight=torch.tensor([0.5, 2.0, 1.0])),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "pair": lambda outputs, targets: (
        nn.functional.cross_entropy(outputs, targets, reduction="sum", ignore_index=2),
        (targets != 2).sum(),
    ),
}
"""Losses whose means are weighed in every way that there is."""


def pipeline_of(cut: str, loss: str, policy: WeightPolicy = "flush") -> gp.Pipeline:
    """Return a pipeline of `fan`."""
    model, (inputs, _) = fan(norm=cut != "replicas"), fan_batch()  # a norm of two samples enlarges rounding
    plan = plan_of(model, inputs, STAGES[cut], BATCH)
    if policy != "flush":
        plan = with_policy(replace(plan, costs=gp.estimate(plan.graph, plan.cluster)), policy)
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)  # Adam would make noise of a gradient of zero larger
    options = gp.PipelineOptions(timeout_seconds=20)
    return gp.Pipeline(plan, hand_split(model, plan, inputs), LOSSES[loss], sgd, options=options)


def share_of(pipeline: gp.Pipeline, step: int, samples: int = BATCH) -> BatchShare:
    """Return this rank's share of a mini-batch."""
    inputs, targets = fan_batch(samples, seed=step)
    return pipeline.needs(samples).cut([100 * step + row for row in range(samples)], inputs, targets)


def train(cut: str, loss: str, shares: bool, policy: WeightPolicy = "flush") -> dict[str, Any]:
    """Train and evaluate with whole mini-batches or with shares."""
    with pipeline_of(cut, loss, policy) as pipeline:
        batches = [share_of(pipeline, step) if shares else fan_batch(seed=step) for step in range(STEPS)]
        losses = pipeline.segment(batches)
        seen: list[tuple[Tensor, Tensor]] = []
        sizes = [BATCH, SAMPLES - BATCH]
        if shares:
            held_out = [share_of(pipeline, 50 + number, size) for number, size in enumerate(sizes)]
        else:
            held_out = [fan_batch(size, seed=50 + number) for number, size in enumerate(sizes)]
        evaluated = pipeline.evaluate_all(held_out, each=lambda *pair: seen.append(pair))
        needs = pipeline.needs()
        gradients = {name: each for name, each in pipeline.gradients().items() if each is not None}
    return {
        "losses": losses,
        "evaluated": evaluated,
        "outputs": torch.cat([outputs for outputs, _ in seen]),
        "targets": torch.cat([targets for _, targets in seen]),
        "inputs": {name: [*rows] for name, rows in needs.inputs.items()},
        "rows": [*needs.targets],
        "gradients": gradients,
    }


def step_with_others(step: int, how: str) -> str:
    """Train with other samples or a whole mini-batch on rank 1 at a step, and return where and why it ended."""
    pipeline = pipeline_of("pair", "mean")
    for number in range(STEPS):
        odd = number == step and dist.get_rank() == 1
        share = share_of(pipeline, number)
        if odd and how == "last sample":
            share = BatchShare(samples=[*share.samples[:-1], 7], inputs=share.inputs, targets=share.targets)
        if odd and how == "missing rows":
            share = BatchShare(samples=share.samples, inputs={n: each[1:] for n, each in share.inputs.items()})
        try:
            if odd and how == "whole":
                pipeline.step(*fan_batch(seed=number))
            else:
                pipeline.step(share)
        except gp.GraphPipeError as error:
            return f"{number} {type(error).__name__}: {error}"
    return ""


def evaluate_others() -> str:
    """Evaluate other samples on rank 1, and return the error."""
    pipeline = pipeline_of("pair", "mean")
    share = share_of(pipeline, 0)
    if dist.get_rank() == 1:
        share = BatchShare(samples=[*share.samples[:-1], 7], inputs=share.inputs, targets=share.targets)
    try:
        pipeline.evaluate(share)
    except gp.GraphPipeError as error:
        return f"{type(error).__name__}: {error}"
    return ""
