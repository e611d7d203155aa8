"""Choices of the greedy rule, in schedules of three stages drawn by hand."""

from dataclasses import replace

from builders import Part, chain, make_plan

from graphpipe.cluster import Link
from graphpipe.costs import Curve
from graphpipe.schedule.list_scheduling.greedy import Rule, greedy
from graphpipe.schedule.list_scheduling.plan_work import work_of_plan


def test_room_is_made_for_a_forward_only_once_its_input_has_arrived():
    # A wrong line made room without looking at the input. Stage 1, full after two forwards, then put a weight gradient
    # of 12 s before its second input half, whose gradient came 0.5 s later.
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=1e18)
    plan = make_plan([Part(in_flight=2)] * 3, chain(3, 1.0), batch_size=4, link=link, schedule="zb-auto")
    lines = {"forward": 2.5, "input_gradient": 1.5, "weight_gradient": 12.0}
    curves = {name: Curve(lines=((0.0, seconds),)) for name, seconds in lines.items()}
    plan = replace(plan, costs=replace(plan.costs, rows=tuple(replace(row, **curves) for row in plan.costs.rows)))
    works = work_of_plan(plan)
    found = greedy(works, Rule(caps=tuple(work.room for work in works.stages)))
    assert ["".join(stage.kinds) for stage in found.progress] == ["FFBFBFBB", "FFIIWFWIFWIW", "FIFIWWFIWFIW"]
    assert found.seconds == 78.0


def test_room_is_made_for_a_forward_with_the_one_weight_gradient_that_is_left():
    # An input half of stage 1 takes 2 s, all other tasks 1 s. At 6 s, after its first input half, stage 1 is full with
    # two micro-batches. A forward and a gradient wait for it: it frees room for the forward.
    plan = make_plan([Part(in_flight=3)] * 3, chain(3), batch_size=3, schedule="zb-auto")
    curve = Curve(lines=((0.0, 1.0),))
    rows = [replace(row, input_gradient=curve, weight_gradient=curve) for row in plan.costs.rows]
    rows[1] = replace(rows[1], input_gradient=Curve(lines=((0.0, 2.0),)))
    works = work_of_plan(replace(plan, costs=replace(plan.costs, rows=tuple(rows))))
    found = greedy(works, Rule(caps=(3, 2, 3)))
    assert ["".join(stage.kinds) for stage in found.progress] == ["FFFBBB", "FFIWFIIWW", "FIFIWWFIW"]
    assert found.seconds == 14.0


def test_a_stage_does_not_wait_if_it_would_then_have_idled_most():
    # F 2 s, I 2 s, W 20 s. Messages with outputs take 0, 2 and 20 s, those with gradients 0, 2 and 0 s.
    #   stage 0   F0 0-2, F1 2-4, B0 6-9, F2 9-11: it has idled 2 s; the last output arrives at 31
    #   stage 1   F0 2-4, I0 4-6, F1 6-8, I1 8-10: to wait from 10 to 31 would be most
    plan = make_plan([Part(in_flight=3)] * 2, chain(2), batch_size=3, schedule="zb-auto")
    lines = {"forward": 2.0, "input_gradient": 2.0, "weight_gradient": 20.0}
    curves = {name: Curve(lines=((0.0, seconds),)) for name, seconds in lines.items()}
    rows = [replace(row, **curves) for row in plan.costs.rows]
    rows[0] = replace(rows[0], weight_gradient=Curve(lines=((0.0, 1.0),)))
    works = work_of_plan(replace(plan, costs=replace(plan.costs, rows=tuple(rows))))
    first, last = works.stages
    outputs, gradients = (
        (route._replace(portions=tuple(((number, at),) for number, at in enumerate(seconds))),)
        for (route,), seconds in ((first.outputs, (0.0, 2.0, 20.0)), (last.gradients, (0.0, 2.0, 0.0)))
    )
    works = replace(works, stages=(replace(first, outputs=outputs), replace(last, gradients=gradients)))
    waits = Rule(caps=(2, 3), weight_wait_share=4.0)
    assert "".join(greedy(works, waits).progress[1].kinds) == "FIFIFIWWW"
    found = greedy(works, replace(waits, balance=True))
    assert "".join(found.progress[1].kinds) == "FIFIWFIWW"
    assert (found.progress[0].idle, found.progress[1].ended) == (2 + 1 + 20, 75)
