"""Rehearsals of one or several plans: the simulator predicts them, and real processes on this machine run them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphpipe.cluster import Cluster
from graphpipe.plans import Plan
from graphpipe.run.rehearse.rehearse import rehearse
from graphpipe.run.rehearse.scaled_plan import Limits, changes, scaled_plan, smallest_feasible_scale
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.simulator import predict
from graphpipe.simulator.simulate import shown_mini_batches, simulate
from graphpipe.simulator.step_loads import DRAWN_STEPS, draw_loads
from graphpipe.trace import Trace
from graphpipe.waiting import waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result, with the names that `--json` prints."""

    ranks: int
    steps: int
    scale: float
    step_seconds_planned: float
    """Predicted for the plan's own cluster, not scaled."""
    step_seconds_predicted: float
    """Predicted with this machine's links, scaled."""
    step_seconds_measured: float
    """Median of the timed steps."""
    difference: float
    """Relative difference of measured to predicted: 0.05 is 5 % longer."""
    changes: tuple[str, ...]
    """What was reduced to fit this machine, in sentences."""


def common_scale(plans: Sequence[Plan]) -> float:
    """Return the smallest scale, at least 1, at which this machine can keep the predicted times of every plan."""
    return max(smallest_feasible_scale(simulate(plan)) for plan in plans)


def rehearse_plan(
    plan: Plan, limits: Limits, *, steps: int = 5, timeout_seconds: float = 300.0
) -> tuple[Rehearsal, Trace]:
    """Run a plan with one process per device, whose tasks sleep. Processes and messages are real.

    Under a weight policy that does not flush, a step is a segment that shows the steady state, as in `simulate`.

    Args:
        plan: a sound plan.
        limits: how times and bytes are changed for this machine.
        steps: how many to time, after one that is not timed.
        timeout_seconds: of the whole rehearsal.

    Returns:
        The result, and the trace of the step of median length. The trace is of `plan`: its seconds are divided by the
        scale, and its memory is empty.

    Raises:
        InvalidInput: the plan is for inference, or `steps` is less than 1.
        GraphPipeError: a rank failed, or the time is over.
    """
    plan.require_training()
    order = build_schedule(plan) if plan.weights == "flush" else build_segment(plan, shown_mini_batches(plan))
    scaled = scaled_plan(plan, limits, Cluster.preset("local:1").every_level[0].link)
    predicted = simulate(scaled, order)
    drawn = _drawn_steps(scaled, order, steps) or [predicted]
    ranks = len(plan.used_devices)
    with waiting(f"rehearsing on {ranks} processes"):
        measured = rehearse(scaled, order, drawn, steps=steps, timeout_seconds=timeout_seconds)
    expected = _step_seconds(scaled, predicted)
    result = Rehearsal(
        ranks=ranks,
        steps=steps,
        scale=limits.scale,
        step_seconds_planned=_step_seconds(plan, simulate(plan)),
        step_seconds_predicted=expected,
        step_seconds_measured=measured.step_seconds,
        difference=measured.step_seconds / expected - 1.0,
        changes=tuple(changes(plan, limits)),
    )
    return result, replace(measured.divided(limits.scale), plan_fingerprint=plan.fingerprint)


def _drawn_steps(plan: Plan, order: Schedule, count: int) -> list[Trace]:
    # The samples are others than those that the prediction drew. Empty if all samples are alike.
    varies = plan.costs.loads and plan.weights == "flush"
    drawn = range(DRAWN_STEPS, DRAWN_STEPS + min(count, DRAWN_STEPS)) if varies else ()
    return [simulate(plan, order, loads=draw_loads(plan, step)) for step in drawn]


def _step_seconds(plan: Plan, predicted: Trace) -> float:
    varies = plan.costs.loads and plan.weights == "flush"
    return predict(plan).step_seconds if varies else predicted.step_seconds
