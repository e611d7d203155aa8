"""The messages of list schedules where they share the ports of devices."""

from dataclasses import replace

import pytest
from builders import Part, make_plan

from graphpipe.cluster import Link
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.plan_work import work_of_plan
from graphpipe.schedule.list_scheduling.replay import replay
from graphpipe.schedule.list_scheduling.stage_work import MessageRoute
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import step_seconds

FORK = [(0, 1, 1.0), (0, 2, 1.0)]
LINK = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0, shared=True)


def forked(*targets: Part, link: Link = LINK) -> Plan:
    return make_plan([Part(), *targets], FORK, batch_size=4, schedule="zb-auto", link=link)


def first_seconds(route: MessageRoute) -> float:
    return route.portions[0][0][1]


def test_a_device_sends_one_message_after_the_other_through_its_port() -> None:
    source, one, other = work_of_plan(forked(Part(), Part(forward=2.0))).stages
    assert len({route.channel for route in (*source.outputs, *source.gradients)}) == 1
    assert len({stage.gradients[0].channel for stage in (one, other)} | {source.outputs[0].channel}) == 3
    alone = work_of_plan(forked(Part(), Part(forward=2.0), link=replace(LINK, shared=False))).stages[0]
    assert alone.outputs[0].channel != alone.outputs[1].channel


def test_equal_messages_pass_a_port_together() -> None:
    # Both targets are equal, so one message stands for two: at the sender's port, and for gradients at the receiver's.
    source, target = work_of_plan(forked(Part(), Part())).stages
    assert [(first_seconds(route), route.occupied) for route in source.outputs] == [(2.0, 1.0)]
    assert [(first_seconds(route), route.occupied) for route in target.gradients] == [(2.0, 0.5)]


def test_a_replica_shares_its_port_among_the_replicas_of_the_other_stage() -> None:
    two = Part(degree=2, micro_batch=2)
    source, one, other = work_of_plan(
        make_plan([Part(micro_batch=2), two, Part()], FORK, batch_size=4, link=LINK)
    ).stages
    assert [(first_seconds(route), route.occupied) for route in source.outputs] == [(2.0, 1.0), (1.0, 1.0)]
    assert [(first_seconds(route), route.occupied) for route in one.gradients] == [(2.0, 0.5)]
    assert [(first_seconds(route), route.occupied) for route in other.gradients] == [(1.0, 1.0)]


@pytest.mark.parametrize("targets", [(Part(), Part()), (Part(), Part(forward=3.0)), (Part(), Part(micro_batch=2))])
def test_the_seconds_are_those_of_the_simulator_where_one_port_is_full(targets: tuple[Part, Part]) -> None:
    plan = forked(*targets)
    timed = replay(work_of_plan(plan), build_schedule(plan))
    assert timed is not None
    assert timed.seconds == pytest.approx(step_seconds(plan), rel=0.05)
    unshared = replay(work_of_plan(forked(*targets, link=replace(LINK, shared=False))), build_schedule(plan))
    assert unshared is not None
    assert unshared.seconds < 0.97 * step_seconds(plan), "the port makes no difference"
