"""Memory for what waits between the halves of backwards, by hand, and by the verifier's own formula."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.costs import SavedBytes
from graphpipe.errors import Infeasible
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.schedule import Schedule
from graphpipe.schedule.list_scheduling.waiting_bytes import has_memory, has_memory_for_all, most_beyond
from graphpipe.schedule.schedulers.registry import build_schedule, build_unverified
from graphpipe.schedule.verify import check_halves, verify


def with_between(plan: Plan, count: float) -> Plan:
    rows = tuple(replace(row, between_halves=SavedBytes(per_sample=count)) for row in plan.costs.rows)
    return replace(plan, costs=replace(plan.costs, rows=rows))


def with_memory(plan: Plan, count: float) -> Plan:
    kinds = tuple(replace(kind, memory_bytes=count) for kind in plan.cluster.device_types)
    return replace(plan, cluster=replace(plan.cluster, device_types=kinds))


def test_gradients_that_wait_must_fit() -> None:
    # Stage 1 keeps 10 and receives 4 per sample; 20 and 4 wait. With two forwards, an input half leaves 24 + 14.
    plan = make_plan([Part(saved_bytes=10), Part(saved_bytes=10, in_flight=2)], chain(2, 4.0), batch_size=2)
    plan = with_between(plan, 20.0)
    schedule = Schedule.parse("schedule hand\n0: F0.0 F0.1 B0.0 B0.1\n1: F1.0 F1.1 I1.0 W1.0 I1.1 W1.1\n")
    late = Schedule.parse("schedule hand\n0: F0.0 F0.1 B0.0 B0.1\n1: F1.0 F1.1 I1.0 I1.1 W1.0 W1.1\n")
    assert needed_bytes(plan)[1] == 28
    assert most_beyond(plan, schedule.devices[1]) == 10
    assert most_beyond(plan, late.devices[1]) == 20
    verify(with_memory(plan, 38.0), schedule)
    with pytest.raises(Infeasible, match=r"needs 48 B.* which has 38 B: 10 B"):
        verify(with_memory(plan, 38.0), late)
    assert has_memory(with_memory(plan, 38.0), schedule.devices)
    assert not has_memory(with_memory(plan, 38.0), late.devices)
    # Both samples in flight may wait, each with 10 more. No schedule needs to be built to know that these fit.
    assert [has_memory_for_all(with_memory(plan, count)) for count in (47.0, 48.0)] == [False, True]


@settings(max_examples=40, deadline=None)
@given(plans(), st.sampled_from(["zb-h1", "zb-auto"]), st.sampled_from([None, 0.0, 9.0]))
def test_schedulers_and_verifier_count_the_same(plan: Plan, name: str, count: float | None) -> None:
    plan = replace(plan, schedule=name, stages=tuple(stage.keeping for stage in plan.stages))
    plan = plan if count is None else with_between(plan, count)
    devices = build_unverified(plan).devices
    needed = needed_bytes(plan)
    most = max(needed[device] + max(0.0, most_beyond(plan, devices[device])) for device in needed)
    if most:
        check_halves(with_memory(plan, most), build_unverified(plan))
    if most <= max(needed.values()) * 1.001:
        return
    assert not has_memory_for_all(with_memory(plan, most - 1e-3 * most))
    lacking = with_memory(plan, most - 0.5 * (most - max(needed.values())))
    assert not has_memory(lacking, devices)
    with pytest.raises(Infeasible):
        check_halves(lacking, build_unverified(plan))
    if name == "zb-auto":
        build_schedule(lacking)  # takes a schedule that fits
