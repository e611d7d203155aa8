"""Stages whose backward cannot be split in two halves: plans record it, and are predicted as they will run."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphpipe.plans.backward_record import BackwardRecord, whole_stages
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import predict

if TYPE_CHECKING:
    from graphpipe.model.capture.capture import Captured


def choose_backwards(plan: Plan, module: Any, *, captured: "Captured | None" = None) -> Plan:
    """Return the plan with whole backwards for the stages whose operations cannot be split in two halves.

    A plan whose schedule does not split backwards is returned unchanged. The runtime never splits the backward of such
    a stage. The returned plan records this, so that it is scheduled and predicted as it will run.

    Args:
        plan: for the graph that was captured from the model.
        module: the model, a `torch.nn.Module`.
        captured: the capture that the graph was made from; None: the model is captured again.

    Raises:
        InvalidInput: the plan is for another model.
    """
    if not find_scheduler(plan.schedule).splits_backward:
        return plan
    from graphpipe.model.split.whole_backwards import whole_backwards

    return _with_whole_backwards(plan, whole_backwards(plan, module, captured))


def choose_recorded_backwards(plan: Plan, record: BackwardRecord) -> Plan:
    """Return what `choose_backwards` returns, from a record of the model's backward instead of the model."""
    splits = find_scheduler(plan.schedule).splits_backward
    return _with_whole_backwards(plan, whole_stages(record, plan.stages)) if splits else plan


def _with_whole_backwards(plan: Plan, whole: Collection[int]) -> Plan:
    if not whole:
        return plan
    stages = (replace(stage, backward="whole") if n in whole else stage for n, stage in enumerate(plan.stages))
    changed = replace(plan, stages=tuple(stages), prediction=None)
    return replace(changed, prediction=predict(changed))
