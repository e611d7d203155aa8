"""Plan with the memory that devices have left for stages, besides contexts, workspaces, communicators and reserve."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from graphpipe.cluster import Cluster, DeviceType
from graphpipe.errors import Infeasible
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import beside_stages, needed_bytes
from graphpipe.units import format_bytes

_MORE_SEARCHES = 2
"""Searches, each of which sets aside what the plan of the one before holds besides its stages."""


def plan_beside_stages(problem: Problem, search: Callable[[Problem], Plan]) -> Plan:
    """Return the plan of a search, with room for what devices hold besides its stages.

    How many communicators a device needs is known only once there is a plan. So the first search sets aside what every
    plan needs. If its plan has too little room, the next search sets aside what that plan holds on the fullest device.

    Args:
        problem: with the whole memory of the devices.
        search: finds a plan for a problem whose devices hold nothing but stages.

    Raises:
        Infeasible: the search raises it, or nothing is left for stages.
    """
    cluster = problem.cluster
    aside = {kind.name: kind.context_bytes + kind.workspace_bytes for kind in cluster.device_types}
    if not any(aside[kind.name] or kind.communicator_bytes or kind.reserved_share for kind in cluster.device_types):
        return search(problem)

    def searched() -> Plan:
        return replace(search(replace(problem, cluster=_left(cluster, aside))), cluster=cluster)

    best = searched()
    for _ in range(_MORE_SEARCHES):
        if _fits(best):
            break
        for device, held in beside_stages(best).items():
            kind = cluster.devices[device].type
            aside[kind] = max(aside[kind], held.total - held.reserved)
        best = searched()
    return best  # If it does not fit either, the verifier says so.


def _fits(plan: Plan) -> bool:
    needed, beside = needed_bytes(plan), beside_stages(plan)
    return all(needed[at] + beside[at].total <= plan.cluster.type_of(at).memory_bytes for at in plan.used_devices)


def _left(cluster: Cluster, aside: Mapping[str, float]) -> Cluster:
    """Return the cluster whose devices have only the memory that is left for stages."""
    return replace(cluster, device_types=tuple(_left_of(kind, aside[kind.name]) for kind in cluster.device_types))


def _left_of(kind: DeviceType, aside: float) -> DeviceType:
    left = (kind.memory_bytes - aside) / (1 + kind.reserved_share)
    if left <= 0:
        memory, held = format_bytes(kind.memory_bytes), format_bytes(aside)
        what = f"device type '{kind.name}' has {memory}, and holds {held} besides stages"
        raise Infeasible(what, remedy="Correct `context`, `workspace` and `communicator` in the cluster file.")
    return replace(
        kind,
        memory_bytes=left,
        context_bytes=0.0,
        workspace_bytes=0.0,
        communicator_bytes=0.0,
        reserved_share=0.0,
    )
