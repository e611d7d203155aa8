"""Check a simulated step: every message and every sum of gradients had its share of the ports that it takes.

Everything is derived again from the cluster and from when things happened. The event engine is not asked.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphpipe.cluster import Cluster, LinkLevel
from graphpipe.plans import Plan
from graphpipe.schedule import Reduce, ReduceTied, Transfer
from graphpipe.simulator.events.engine import Interval
from graphpipe.simulator.simulated_work import HostCopy, SimulatedWork

_RELATIVE = 1e-6
"""Of the length of the step. Times are sums of many seconds."""
_Side = tuple[int, str, str]
"""A device, a level, and the direction."""


@dataclass(frozen=True, slots=True)
class _Passage:
    # Bytes that take ports for a time.
    begin: float
    end: float
    seconds: float
    """That they need if nothing else is in their ports."""
    sides: tuple[_Side, ...]


def verify_ports(plan: Plan, happened: Sequence[tuple[SimulatedWork, Interval]]) -> None:
    """Check that what shared a port had its share of it, no more and no less.

    With n passages in a port, each has at most 1/n of it. A passage goes as fast as its fullest port lets it.

    Args:
        plan: of the step, on a cluster whose devices do not wait for messages.
        happened: the work of the step and its times.
    """
    passages = [passage for what, when in happened for passage in _passages(plan, what, when)]
    users_of = dict[_Side, list[_Passage]]()
    for passage in passages:
        for side in passage.sides:
            users_of.setdefault(side, []).append(passage)
    users = {side: _steps(some) for side, some in users_of.items()}
    limit = _RELATIVE * max((when.end for _, when in happened), default=0.0)
    for passage in passages:
        passed = sum(
            (until - since) / max(_count(users[side], since) for side in passage.sides)
            for since, until in _pieces(passage, users)
        )
        assert abs(passed - passage.seconds) <= limit, f"{passed} s of {passage.seconds} s passed {passage.sides}"


def _passages(plan: Plan, what: SimulatedWork, when: Interval) -> Iterator[_Passage]:
    if isinstance(what, Transfer):
        yield from _message(plan.cluster, what.source_device, what.target_device, what.bytes(plan), when)
    elif isinstance(what, HostCopy) and what.neighbour is not None:
        ends = (what.device, what.neighbour) if what.kind == "evict" else (what.neighbour, what.device)
        yield from _message(plan.cluster, *ends, what.bytes, when)
    elif isinstance(what, Reduce):
        stage = plan.stages[what.stage]
        rings = [stage.devices[rank :: stage.tensor] for rank in range(stage.tensor)]
        yield from _sum(plan.cluster, rings, plan.reduce_seconds(what.stage), when)
    elif isinstance(what, ReduceTied):
        tied = plan.tied_gradients[what.tied_gradients]
        yield from _sum(plan.cluster, tied.rings, plan.tied_gradients_seconds(tied), when)


def _message(cluster: Cluster, source: int, target: int, count: float, when: Interval) -> Iterator[_Passage]:
    level = _nearest(cluster, source, target)
    if level is not None and count:
        sides = (source, level.name, "out"), (target, level.name, "in")
        seconds = count / level.link.bandwidth_bytes_per_second
        yield _Passage(when.start + level.link.latency_seconds, when.end, seconds, sides)


def _sum(cluster: Cluster, rings: Sequence[tuple[int, ...]], seconds: float, when: Interval) -> Iterator[_Passage]:
    # A ring is as fast as its slowest link. If that is shared, the sum takes the ports of all devices at its level.
    sides: tuple[_Side, ...] = ()
    for devices in rings:
        ring = [(one, devices[(at + 1) % len(devices)]) for at, one in enumerate(devices)]
        known = [link for pair in ring if (link := cluster.link(*pair))]
        links = [(link.bandwidth_bytes_per_second, -link.latency_seconds) for link in known]
        if links and (level := _nearest(cluster, *ring[links.index(min(links))])) is not None:
            sides += tuple((device, level.name, way) for device in devices for way in ("in", "out"))
    if sides and seconds:
        yield _Passage(when.start, when.end, seconds, sides)


def _nearest(cluster: Cluster, one: int, other: int) -> LinkLevel | None:
    """Return the level at which two devices share ports; None if they do not."""
    nodes = {cluster.devices[one].node, cluster.devices[other].node}
    names = {cluster.devices[one].name, cluster.devices[other].name}
    if any({pair.first, pair.second} == names for pair in cluster.pair_links):
        return None
    level = next(level for level in cluster.every_level if any(nodes <= set(group) for group in level.nodes))
    return level if level.link.shared else None


_Steps = tuple[list[float], list[int]]
"""Times, ascending, and the number of users from each of them on."""


def _steps(passages: Iterable[_Passage]) -> _Steps:
    changes: dict[float, int] = {}
    for passage in passages:
        changes[passage.begin] = changes.get(passage.begin, 0) + 1
        changes[passage.end] = changes.get(passage.end, 0) - 1
    times, counts, users = sorted(changes), list[int](), 0
    for time in times:
        users += changes[time]
        counts.append(users)
    return times, counts


def _count(steps: _Steps, time: float) -> int:
    times, counts = steps
    return counts[bisect_right(times, time) - 1]


def _pieces(passage: _Passage, users: dict[_Side, _Steps]) -> Iterator[tuple[float, float]]:
    """Yield the times between changes of the ports of a passage."""
    times = {passage.begin, passage.end}
    for side in passage.sides:
        own = users[side][0]
        times.update(own[bisect_right(own, passage.begin) : bisect_right(own, passage.end)])
    yield from pairwise(sorted(times))
