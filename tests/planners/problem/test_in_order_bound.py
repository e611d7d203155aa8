"""The bound that follows the order of 1F1B: never above the step, and equal to it where only the order decides."""

import pytest
from hypothesis import given, settings

from graphpipe.errors import InvalidInput
from graphpipe.planners.problem.in_order_bound import least_1f1b_seconds, least_seconds
from graphpipe.plans import Plan
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.simulator import step_seconds
from tests.support.builders import Part, chain, make_plan, plans


@given(plan=plans(schedules=("1f1b",)))
@settings(max_examples=120, deadline=None)
def test_every_1f1b_step_takes_at_least_the_bound(plan: Plan) -> None:
    try:
        seconds = step_seconds(plan)
    except InvalidInput:  # Some mixed micro-batch sizes deadlock.
        return
    assert least_1f1b_seconds(plan) <= seconds
    assert least_step_seconds(plan) * (1 - 1e-9) <= least_seconds(plan) <= seconds * (1 + 1e-9)


def test_messages_that_1f1b_cannot_hide_count():
    # Forwards take 1 s, backwards 2 s, messages 1 s. A gradient is back at stage 0 after 1 + 1 + 3 + 1 = 6 s. With two
    # micro-batches in flight, stage 0 has only done 2 s of work by then, and must wait.
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=1.0), batch_size=4)
    assert [stage.in_flight for stage in plan.stages] == [2, 1]
    assert least_1f1b_seconds(plan) == pytest.approx(step_seconds(plan), rel=1e-9)
    assert least_step_seconds(plan) < 0.9 * step_seconds(plan)
