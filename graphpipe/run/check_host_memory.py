"""Before a run, each node must have as much free memory as its ranks offload together."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.errors import Infeasible
from graphpipe.files.json_body import from_body, to_body
from graphpipe.host_memory import available_host_bytes
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import offloaded_bytes
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The machine or container of one rank."""

    host: str
    available_bytes: float
    """What all ranks of the host together may still allocate."""
    rounding: float = 1.0
    """At most how many times its bytes a buffer of the rank takes there."""


def check_host_memory(world: World, placement: RankPlacement) -> None:
    """Check that what the stages of every node offload fits in its free memory; every rank must call this.

    The plan was checked against the memory that its cluster has. This is the memory that is free now.

    Raises:
        Infeasible: it does not fit. Names the stages, the node and the bytes, on every rank.
    """
    if any(stage.offload and not stage.offload_to for stage in placement.plan.stages):
        own = HostShare(
            host=socket.gethostname(), available_bytes=available_host_bytes(), rounding=world.kind.host_rounding
        )
        shares = world.exchange(to_body(own))
        check_shares(placement, [from_body(HostShare, share, "host memory") for share in shares])


def check_shares(placement: RankPlacement, ranks: Sequence[HostShare]) -> None:
    """Check that what the ranks of every host offload together is free there.

    Args:
        placement: of the plan on the ranks.
        ranks: where each of them is.

    Raises:
        Infeasible: as `check_host_memory`.
    """
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [number for number, rank in enumerate(ranks) if rank.host == host]
        slots = [(slot.stage, ranks[number].rounding) for number in here for slot in placement.slots(number)]
        plan = placement.plan
        needs = [(_offloaded_bytes(plan, stage) * rounding, plan.stages[stage].name) for stage, rounding in slots]
        total, available = sum(need for need, _ in needs), min(ranks[number].available_bytes for number in here)
        if total > available:
            largest = sorted(((need, name) for need, name in needs if need), reverse=True)
            names = [f"'{name}'" for name in dict.fromkeys(name for _, name in largest)]
            offload = f"stages {' and '.join(names)} offload" if len(names) > 1 else f"stage {names[0]} offloads"
            missing = f"{format_bytes(total - available)} ({total - available:.0f} bytes)"
            raise Infeasible(
                f"{offload} {format_bytes(total)} to the memory of host '{host}', of which "
                f"{format_bytes(available)} are free: {missing} short",
                remedy="Recompute instead, offload less, run fewer ranks on this host, or free its memory.",
            )


def _offloaded_bytes(plan: Plan, number: int) -> float:
    """Return what one replica of a stage keeps in the memory of its node with all its samples in flight."""
    stage = plan.stages[number]
    return 0.0 if stage.offload_to else offloaded_bytes(plan, stage)
