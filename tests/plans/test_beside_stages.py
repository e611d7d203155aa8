"""What a device holds besides its stages: context, workspaces, communicators by peers, and the allocator's reserve."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.cluster import HostMemory
from graphpipe.errors import Infeasible
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import BesideStages, beside_stages, needed_bytes
from graphpipe.plans.verify_memory import check_memory


def with_type(plan: Plan, **changes: float) -> Plan:
    (kind,) = plan.cluster.device_types
    host = (HostMemory(node="n0", bytes=1e9),)
    return replace(plan, cluster=replace(plan.cluster, device_types=(replace(kind, **changes),), host_memory=host))


def test_each_term_is_counted_once() -> None:
    # Two replicas on devices 0 and 1 send to device 2, which also hosts the last stage.
    parts = [Part(micro_batch=2, degree=2, parameter_bytes=8.0), Part(parameter_bytes=4.0), Part(devices=(2,))]
    plan = with_type(make_plan(parts, chain(3, 1.0)), context_bytes=100.0, workspace_bytes=10.0)
    plan = with_type(plan, communicator_bytes=1.0, reserved_share=0.5)
    needed, held = needed_bytes(plan), beside_stages(plan)
    # A replica has one peer, and is in the group of the replicas and in that of all.
    assert held[0] == BesideStages(context=100, workspaces=10, communicators=2 * 1 + 2, reserved=needed[0] / 2)
    # The last device has two peers, two stages, and is in no group but that of all.
    assert held[2] == BesideStages(context=100, workspaces=10, communicators=2 * 2 + 1, reserved=needed[2] / 2)
    assert held[2].total == 115 + needed[2] / 2


def test_replicas_without_common_samples_are_not_peers() -> None:
    parts = [Part(micro_batch=2, degree=2)] * 2
    plan = with_type(make_plan(parts, chain(2, 1.0)), communicator_bytes=1.0)
    assert {held.communicators for held in beside_stages(plan).values()} == {2 * 1 + 2}


def test_one_device_needs_no_communicator() -> None:
    plan = with_type(make_plan([Part()]), communicator_bytes=1.0)
    assert beside_stages(plan)[0].total == 0


@settings(max_examples=20, deadline=None)
@given(plans(batch_size=8), st.booleans())
def test_the_verifier_counts_the_same(plan: Plan, shares: bool) -> None:
    if shares and len(plan.stages) > 2:
        plan = share(share(plan, [0, 1], 3.0, "one"), [0, 2], 3.0, "two")
    plan = with_type(plan, context_bytes=70.0, workspace_bytes=11.0, communicator_bytes=3.0, reserved_share=0.25)
    needed, held = needed_bytes(plan), beside_stages(plan)
    most = max(needed[device] + held[device].total for device in plan.used_devices)
    check_memory(with_type(plan, memory_bytes=most))
    with pytest.raises(Infeasible, match="besides"):
        check_memory(with_type(plan, memory_bytes=most * 0.999))
