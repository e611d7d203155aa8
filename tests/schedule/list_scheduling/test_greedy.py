"""Choices of the greedy rule, in schedules of three stages drawn by hand."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan

from graphpipe.cluster import Link
from graphpipe.costs import Curve
from graphpipe.schedule.list_scheduling.greedy import Rule, greedy
from graphpipe.schedule.list_scheduling.partial_schedule import PartialSchedule
from graphpipe.schedule.list_scheduling.plan_work import PlanWork, work_of_plan


def lines(**seconds: float) -> dict[str, Curve]:
    """Return curves of so many seconds per sample."""
    return {name: Curve(lines=((0.0, each),)) for name, each in seconds.items()}


def test_room_is_made_for_a_forward_only_once_its_input_has_arrived():
    # A wrong line made room without looking at the input. Stage 1, full after two forwards, then put a weight gradient
    # of 12 s before its second input half, whose gradient came 0.5 s later.
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=1e18)
    plan = make_plan([Part(in_flight=2)] * 3, chain(3, 1.0), batch_size=4, link=link, schedule="zb-auto")
    curves = lines(forward=2.5, input_gradient=1.5, weight_gradient=12.0)
    rows = tuple(replace(row, **curves) for row in plan.costs.rows)
    works = work_of_plan(replace(plan, costs=replace(plan.costs, rows=rows, kept_for_weight_gradient=1.0)))
    found = greedy(works, Rule(caps=tuple(work.room for work in works.stages)))
    assert ["".join(stage.kinds) for stage in found.progress] == ["FFBFBFBB", "FFIIWFWIFWIW", "FIFIWWFIWFIW"]
    assert found.seconds == 78.0


def three_stages(*, sends: float, returns: float) -> PlanWork:
    """Return stages with tasks of 1 s, except forwards of the first, and input halves of the others: 2 s, `returns`."""
    plan = make_plan([Part(in_flight=3)] * 3, chain(3), batch_size=3, schedule="zb-auto")
    rows = [replace(row, **lines(forward=1.0, input_gradient=1.0, weight_gradient=1.0)) for row in plan.costs.rows]
    others = (lines(forward=sends), lines(input_gradient=2.0), lines(input_gradient=returns))
    rows = [replace(row, **other) for row, other in zip(rows, others, strict=True)]
    return work_of_plan(replace(plan, costs=replace(plan.costs, rows=tuple(rows))))


def test_room_is_made_for_a_forward_with_the_one_weight_gradient_that_is_left():
    # At 6 s, after its first input half, stage 1 is full with two micro-batches. A forward and a gradient wait for it.
    found = greedy(three_stages(sends=1.0, returns=1.0), Rule(caps=(3, 2, 3)))
    assert ["".join(stage.kinds) for stage in found.progress] == ["FFFBBB", "FFIWFIIWW", "FIFIWWFIW"]
    assert found.seconds == 14.0


def test_room_is_made_for_a_forward_that_arrives_just_then():
    #   stage 1   F0 3-4, F1 6-7, I0 7-9, W0 9-10, F2 10-11, I1 11-13, I2 14-16, W1 16-17, W2 17-18
    # The third forward arrives at 9. A weight gradient alone would wait for the gradient that arrives at 10.
    found = greedy(three_stages(sends=3.0, returns=2.0), Rule(caps=(3, 2, 3), weight_wait_share=4.0))
    assert "".join(found.progress[1].kinds) == "FFIWFIIWW"
    assert found.seconds == 18.0


@pytest.mark.parametrize(
    ("third", "balance", "kinds"),
    [
        (20.0, False, "FIFIFIWWW"),
        (20.0, True, "FIFIWFIWW"),
        (1.0, True, "FIFIWFIWW"),  # it would have idled 2 s too
        (0.5, True, "FIFIFIWWW"),
    ],
)
def test_a_stage_does_not_wait_if_it_would_then_have_idled_most(third: float, balance: bool, kinds: str):
    # F 2 s, I 2 s, W 20 s. Messages with outputs take 0, 2 and `third` s, those with gradients 0, 2 and 0 s.
    #   stage 0   F0 0-2, F1 2-4, B0 6-9, F2 9-11: it has idled 2 s; the last output arrives at 11 + third
    #   stage 1   F0 2-4, I0 4-6, F1 6-8, I1 8-10: it may wait from 10 on
    plan = make_plan([Part(in_flight=3)] * 2, chain(2), batch_size=3, schedule="zb-auto")
    rows = [replace(row, **lines(forward=2.0, input_gradient=2.0, weight_gradient=20.0)) for row in plan.costs.rows]
    rows[0] = replace(rows[0], **lines(weight_gradient=1.0))
    works = work_of_plan(replace(plan, costs=replace(plan.costs, rows=tuple(rows))))
    first, last = works.stages
    outputs, gradients = (
        (route._replace(portions=tuple(((number, at),) for number, at in enumerate(seconds))),)
        for (route,), seconds in ((first.outputs, (0.0, 2.0, third)), (last.gradients, (0.0, 2.0, 0.0)))
    )
    works = replace(works, stages=(replace(first, outputs=outputs), replace(last, gradients=gradients)))
    found = greedy(works, Rule(caps=(2, 3), weight_wait_share=4.0, balance=balance))
    assert "".join(found.progress[1].kinds) == kinds


def test_a_stage_is_free_when_all_of_its_devices_are():
    # Stages 1 and 2 each have one of the two devices of stage 0.
    parts = [Part(devices=(0, 1), micro_batch=2, degree=2), Part(devices=(0,)), Part(devices=(1,))]
    partial = PartialSchedule(work_of_plan(make_plan(parts, [(0, 1, 0.0), (0, 2, 0.0)], schedule="zb-auto")))
    both, *_ = partial.works.stages
    assert len(both.places) == 2
    for stage, seconds, free in ((2, 5.0, [5.0, 0.0, 5.0]), (1, 7.0, [7.0, 7.0, 5.0]), (2, 6.0, [7.0, 7.0, 6.0])):
        progress = partial.progress[stage]
        progress.work = replace(progress.work, seconds=dict.fromkeys("FBIW", seconds - progress.free))
        partial.put(stage, "F", progress.free)
        assert [each.free for each in partial.progress] == free
