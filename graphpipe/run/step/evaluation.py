"""Evaluation: forward only, in evaluation mode, for any number of samples."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from graphpipe.plans import Plan
from graphpipe.schedule import LoweredSchedule, Schedule, lower


def stretch(plan: Plan, samples: int) -> Plan:
    """Return the plan with every stage that needs the whole batch taking all of `samples` at once."""
    stages = tuple(
        replace(stage, micro_batch=samples) if any(plan.graph[name].whole_batch for name in stage.ops) else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def lower_forward(plan: Plan, schedule: Schedule, samples: int) -> tuple[Plan, LoweredSchedule]:
    """Return what to run to evaluate this many samples."""
    stretched = stretch(plan, samples)
    return stretched, lower(stretched, schedule, batch_size=samples, forward_only=True)


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Generator[None]:
    """Put the modules into evaluation mode without gradients, and every submodule back into its own mode after."""
    modes = [(module, module.training) for root in modules for module in root.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
