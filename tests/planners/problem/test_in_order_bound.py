"""The bound that follows the order of 1F1B: never above the step, and equal to it where only the order decides."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from graphpipe.errors import InvalidInput
from graphpipe.planners.problem.in_order_bound import least_1f1b_seconds, least_seconds
from graphpipe.plans import Plan
from graphpipe.plans.estimates import hops, least_step_seconds, update_seconds
from graphpipe.simulator import step_seconds
from tests.support.builders import Part, chain, make_plan, plans


def by_passes(plan: Plan) -> float:
    """Return the bound by a second program, which tries all tasks of all stages until none of them can be done."""
    feeding, back = hops(plan)
    messages: dict[tuple[int, str], list[tuple[int, float]]] = {
        **{(stage, "F"): each for stage, each in enumerate(feeding)},
        **{(stage, "B"): [] for stage in range(len(back))},
    }
    for sender, receivers in enumerate(back):
        for receiver, seconds in receivers:
            messages[receiver, "B"].append((sender, seconds))
    ends: dict[tuple[int, str, int], float] = {}
    done = -1
    while done < len(ends):
        done = len(ends)
        for number, stage in enumerate(plan.stages):
            kinds = plan.tasks_seconds(number)
            free = plan.gather_seconds(number)
            for kind, index in order_of(plan, number):
                sample = index * stage.micro_batch + stage.micro_batch // stage.degree - 1
                needs = [((o, kind, sample // plan.stages[o].micro_batch), each) for o, each in messages[number, kind]]
                if any(need not in ends for need, _ in needs):
                    break
                free = max([free, *(ends[need] + each for need, each in needs)])
                free += min(task.forward if kind == "F" else task.backward for task in kinds)
                ends[number, kind, index] = free
    last = [ends.get((number, "B", plan.micro_batches(number) - 1)) for number in range(len(plan.stages))]
    updated = [end + update_seconds(plan, number) for number, end in enumerate(last) if end is not None]
    return max(updated) if len(updated) == len(last) else 0.0


def order_of(plan: Plan, number: int) -> list[tuple[str, int]]:
    """Return the tasks of a stage under 1F1B: forwards up to its samples in flight, then a backward before each."""
    count, stage = plan.micro_batches(number), plan.stages[number]
    warm_up = min(count, stage.in_flight // stage.micro_batch)
    steady = [each for index in range(count - warm_up) for each in (("B", index), ("F", warm_up + index))]
    return (
        [("F", index) for index in range(warm_up)] + steady + [("B", index) for index in range(count - warm_up, count)]
    )


@given(plan=plans(schedules=("1f1b",)))
@settings(max_examples=60, deadline=None)
def test_every_1f1b_step_takes_at_least_the_bound(plan: Plan) -> None:
    assert least_1f1b_seconds(plan) == pytest.approx(by_passes(plan), rel=1e-11)
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
    assert least_1f1b_seconds(plan) < step_seconds(plan)  # so that rounding does not lift a bound above a step
    assert least_step_seconds(plan) < 0.9 * step_seconds(plan)


def test_a_backward_waits_for_the_gradient_of_its_last_sample():
    plan = make_plan([Part(micro_batch=3), Part(micro_batch=1)], chain(2, bytes_per_sample=1.0), batch_size=6)
    assert least_1f1b_seconds(plan) == pytest.approx(by_passes(plan), rel=1e-9)
    assert least_1f1b_seconds(plan) <= step_seconds(plan)


def test_other_schedules_and_policies_have_the_bound_of_all_schedules():
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=1.0), batch_size=4)
    assert least_seconds(plan) == least_1f1b_seconds(plan) > least_step_seconds(plan)
    for other in ({"schedule": "zb-h1"}, {"weights": "stash"}, {"weights": "double-buffer"}, {"trains": False}):
        free = replace(plan, **other)  # pyright: ignore[reportArgumentType]
        assert least_seconds(free) == least_step_seconds(free)
    # Stages that wait for each other forever have no bound.
    assert least_1f1b_seconds(replace(plan, stages=(replace(plan.stages[0], in_flight=1), plan.stages[1]))) > 0
    parts = [Part(micro_batch=1, in_flight=1), Part(micro_batch=2, in_flight=2)]
    assert least_1f1b_seconds(make_plan(parts, chain(2), batch_size=4)) == 0.0
