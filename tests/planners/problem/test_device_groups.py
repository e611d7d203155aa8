"""Groups of devices that share replicas, as the devices of a cluster that every search can plan for."""

from dataclasses import replace

import pytest
from shared_replicas import chain, cluster, layer, problem, shards

from graphpipe.cluster import Device, HostMemory, Link, PairLink
from graphpipe.planners.problem.device_groups import DeviceGroups
from graphpipe.planners.problem.partition import Part, assemble
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds

GRAPH = chain(layer("a", shards()), layer("b", None), layer("c", shards()))


def test_groups_stay_on_their_node_and_leave_devices_over() -> None:
    assert DeviceGroups.of(cluster(8), 2).members == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert DeviceGroups.of(cluster(6, per_node=3), 2).members == ((0, 1), (3, 4))
    assert DeviceGroups.of(cluster(6, per_node=3), 4).members == ()


def test_groups_have_devices_of_one_type() -> None:
    two = cluster(4)
    kinds = (*two.device_types, replace(two.device_types[0], name="other"))
    devices = tuple(
        Device(name=device.name, type="other" if at % 2 else "gpu", node="n0") for at, device in enumerate(two.devices)
    )
    assert DeviceGroups.of(replace(two, device_types=kinds, devices=devices), 2).members == ((0, 2), (1, 3))


def test_near_devices_are_grouped_where_links_differ_by_pair() -> None:
    fast = Link(latency_seconds=0, bandwidth_bytes_per_second=400)
    pairs = tuple(PairLink(first=f"d{one}", second=f"d{other}", link=fast) for one, other in ((0, 2), (1, 3)))
    paired = replace(cluster(4), pair_links=pairs)
    groups = DeviceGroups.of(paired, 2)
    assert groups.members == ((0, 2), (1, 3))
    grouped = groups.problem(replace(problem(GRAPH, 4), cluster=paired))
    assert grouped.cluster.pair_links == (), "devices of equal rank have the link of their level"
    slow = Link(latency_seconds=0, bandwidth_bytes_per_second=1)
    apart = replace(paired, pair_links=(*pairs, PairLink(first="d2", second="d3", link=slow)))
    (pair,) = DeviceGroups.of(apart, 2).problem(replace(problem(GRAPH, 4), cluster=apart)).cluster.pair_links
    assert (pair.first, pair.second, pair.link) == ("d0+1", "d1+1", slow), "the slowest of the pairs of devices counts"


def test_a_grouped_cluster_has_the_memory_of_a_device_and_a_share_of_the_nodes() -> None:
    host = replace(cluster(8), host_memory=(HostMemory(node="n0", bytes=100),), cores_per_node=6)
    grouped = DeviceGroups.of(host, 4).problem(replace(problem(GRAPH, 8), cluster=host)).cluster
    assert [device.name for device in grouped.devices] == ["d0+3", "d4+3"]
    assert grouped.smallest_memory_bytes == host.smallest_memory_bytes
    assert grouped.host_memory == (HostMemory(node="n0", bytes=25),)
    assert grouped.cores_per_node == 1


@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 1, 1), (1, 2, 1)])
def test_a_plan_of_groups_is_as_fast_and_as_large_as_that_of_its_devices(degrees: tuple[int, ...]):
    whole = problem(GRAPH, 8)
    groups = DeviceGroups.of(whole.cluster, 2)
    grouped = groups.problem(whole)
    parts = [Part((name,), degree, 2) for name, degree in zip("abc", degrees, strict=True)]
    plan = assemble(grouped, parts, planner="graphpipe")
    expanded = groups.expanded(plan, whole)
    verify(expanded)
    assert step_seconds(expanded) == pytest.approx(step_seconds(plan), rel=1e-12)
    assert set(needed_bytes(expanded).values()) == set(needed_bytes(plan).values())
    assert [stage.tensor for stage in expanded.stages] == [2, 2, 2]
    assert [stage.degree for stage in expanded.stages] == list(degrees)
