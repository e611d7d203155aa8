"""Plans fitted into memory by what their stages recompute and offload."""

from dataclasses import replace

from builders import Part, make_plan

from graphpipe.cluster import Link
from graphpipe.planners.improve.relieved import relieved
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds


def full_first_stage(bandwidth: float) -> Plan:
    """Return four stages of which the first lacks 1 byte; the last device has most to spare. 2 B/s to the host."""
    parts = [Part(saved_bytes=4.0, parameter_bytes=25.0), *(Part(saved_bytes=4.0) for _ in range(3))]
    plan = make_plan(parts, batch_size=12, link=Link(latency_seconds=0.0, bandwidth_bytes_per_second=bandwidth))
    kinds = (replace(plan.cluster.device_types[0], memory_bytes=memory_shortfall(plan) + 1e9 - 1.0),)
    return replace(plan, cluster=replace(plan.cluster, device_types=kinds))


def test_a_full_stage_offloads_to_the_neighbour_with_most_to_spare():
    plan = full_first_stage(bandwidth=40.0)
    at_home, away = (min(relieved(plan, neighbours=neighbours), key=step_seconds) for neighbours in (False, True))
    verify(away)
    assert [stage.offload_to for stage in away.stages] == [(3,), (), (), ()]
    assert not any(stage.offload_to for stage in at_home.stages)
    keeping = replace(away, stages=tuple(stage.keeping for stage in away.stages))
    assert step_seconds(keeping) <= step_seconds(away) < step_seconds(at_home)


def test_a_stage_does_not_offload_over_a_link_slower_than_that_to_its_node():
    found = relieved(full_first_stage(bandwidth=1.0), neighbours=True)
    assert found
    assert not any(stage.offload_to for plan in found for stage in plan.stages)
