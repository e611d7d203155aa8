"""Plans leave room for what devices hold besides stages."""

from dataclasses import replace

import pytest

import graphpipe as gp
from graphpipe.cluster import Cluster, DeviceType
from graphpipe.errors import Infeasible
from graphpipe.plans.device_memory import beside_stages, needed_bytes
from graphpipe.report.content.summary import summarise, summary_lines
from graphpipe.units import format_bytes
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph


def graph(name: str) -> gp.Graph:
    known = find_zoo_graph(name)
    assert known is not None
    return known.graph


GRAPH = graph("mmt")
H100 = Cluster.preset("dgx-h100:1x4")


def cluster(memory: float, **changes: float) -> Cluster:
    (kind,) = H100.device_types
    bare = {"context_bytes": 0.0, "workspace_bytes": 0.0, "communicator_bytes": 0.0, "reserved_share": 0.0}
    return replace(H100, device_types=(replace(kind, memory_bytes=memory, **(bare | changes)),))


def planned(on: Cluster, graph: gp.Graph = GRAPH) -> gp.Plan:
    return gp.plan(graph, gp.estimate(graph, on), on, batch_size=16, schedule="1f1b", stages_per_device=1)


@pytest.fixture(scope="module")
def tight() -> float:
    """A memory with little to spare for the plan that is made when it is ample."""
    return 1.02 * max(needed_bytes(planned(cluster(80e9))).values())


@pytest.mark.parametrize(
    "changes", [{"context_bytes": 0.1}, {"communicator_bytes": 0.02}, {"reserved_share": 0.1}, {"workspace_bytes": 0.1}]
)
def test_a_plan_that_fits_without_them_is_replaced(changes: dict[str, float], tight: float) -> None:
    """Plans counted only their stages, and ended out of memory on a GPU."""
    sizes = {name: value * (1 if name == "reserved_share" else tight) for name, value in changes.items()}
    plan = planned(cluster(tight, **sizes))
    held = beside_stages(plan)
    for device, needed in needed_bytes(plan).items():
        assert held[device].total > 0
        assert needed + held[device].total <= tight
    assert plan.cluster == cluster(tight, **sizes)


def test_nothing_is_left_for_stages() -> None:
    with pytest.raises(Infeasible, match=r"device type 'h100' has 1\.00 GiB, and holds 2\.00 GiB besides"):
        planned(cluster(2**30, context_bytes=2**31))


def test_the_summary_names_the_terms() -> None:
    small = graph("two-tower-small")
    plan = planned(H100, small)
    assert plan.prediction is not None
    (line,) = [line for line in summary_lines(summarise(plan, plan.prediction)) if "besides" in line]
    held = max(beside_stages(plan).values(), key=lambda each: each.total)
    assert f"context 477 MiB, workspaces {format_bytes(held.workspaces)}, communicators" in line
    bare = planned(cluster(80e9), small)
    assert bare.prediction is not None
    assert summarise(bare, bare.prediction).beside_stages is None


def test_cpus_hold_nothing_besides_stages() -> None:
    (kind,) = Cluster.preset("local:2").device_types
    assert isinstance(kind, DeviceType)
    assert (kind.context_bytes, kind.workspace_bytes, kind.communicator_bytes, kind.reserved_share) == (0, 0, 0, 0)
