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
