"""The fastest plan of a small problem by brute force: every partition, every set of devices, every micro-batch size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.problem.partition import Part, Problem, assemble, crossing_bytes, stage_order
from graphpipe.planning.choose_schedule import under
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import step_seconds

Team = tuple[int, ...]
"""Devices of a stage."""


def least_seconds(problem: Problem, known: float, *, shared: bool) -> float:
    """Return the seconds of the fastest plan under 1F1B, or those that are known if no plan is faster.

    Args:
        problem: of a few operators and devices.
        known: seconds of a step of some plan.
        shared: whether a device may host several stages, which are then interleaved.
    """
    devices = range(len(problem.cluster.devices))
    teams = [tuple(device for device in devices if chosen >> device & 1) for chosen in range(1, 2 ** len(devices))]
    names, least = _equal_namings(problem.cluster), known
    for groups in partitions(problem.graph.order):
        shape = [Part(tuple(ops), 1, 1) for ops in groups]
        order = stage_order(len(shape), crossing_bytes(problem.graph, shape))
        if order is None or (len(shape) > len(devices) and not shared):
            continue
        ops = [tuple(groups[stage]) for stage in order]
        for size in _sizes(problem.batch_size):
            busy = [[_busy_seconds(problem, each, team, size) for team in teams] for each in ops]
            for hosts in _Hosts(busy, teams, known, shared).of([0.0] * len(devices)):
                if _first_of_equals(hosts, names):
                    parts = [Part(each, len(team), size) for each, team in zip(ops, hosts, strict=True)]
                    plan = assemble(problem, parts, planner="all", devices=hosts)
                    least = min(least, _seconds(plan, least))
    return least


def partitions(names: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield every way to group names."""
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [[names[0]], *rest]
        for at in range(len(rest)):
            yield [*rest[:at], [names[0], *rest[at]], *rest[at + 1 :]]


def _sizes(batch: int) -> list[int]:
    return [size for size in range(1, batch + 1) if batch % size == 0]


def _busy_seconds(problem: Problem, ops: tuple[str, ...], team: Team, size: int) -> list[float]:
    """Return the seconds per mini-batch in which each device of a team computes; infinite if the size does not fit."""
    if size % len(team):
        return [inf] * len(team)
    model = CostModel.of(problem.graph, problem.costs, problem.cluster)
    tasks = [model.task_seconds(ops, device, size / len(team)) for device in team]
    return [problem.batch_size // size * (task.forward + task.backward) for task in tasks]


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The teams that the stages of a partition may have, where every device computes for less time than a limit."""

    busy: Sequence[Sequence[Sequence[float]]]
    """Seconds by stage, team and device of the team."""
    teams: Sequence[Team]
    limit: float
    """Seconds of a step that is not shorter than the known one."""
    shared: bool

    def of(self, load: Sequence[float], stage: int = 0) -> Iterator[tuple[Team, ...]]:
        """Yield the teams of this stage and the later ones, where devices have a load already."""
        if stage == len(self.busy):
            yield ()
            return
        for team, seconds in zip(self.teams, self.busy[stage], strict=True):
            if not self.shared and any(load[device] for device in team):
                continue
            more = list(load)
            for device, own in zip(team, seconds, strict=True):
                more[device] += own
            if max(more) < self.limit:
                yield from ((team, *others) for others in self.of(more, stage + 1))


def _equal_namings(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return the ways to exchange devices that keep their types, and which of them are on one node."""
    devices = cluster.devices
    pairs = [(one, other) for one in range(len(devices)) for other in range(one)]

    def keeps(name: tuple[int, ...]) -> bool:
        types = all(devices[at].type == devices[name[at]].type for at in range(len(devices)))
        return types and all(
            (devices[one].node == devices[other].node) == (devices[name[one]].node == devices[name[other]].node)
            for one, other in pairs
        )

    return [name for name in permutations(range(len(devices))) if keeps(name)]


def _first_of_equals(hosts: Sequence[Team], names: Sequence[tuple[int, ...]]) -> bool:
    """Return whether no other naming of the devices gives a smaller sequence of teams."""
    return all(
        tuple(tuple(sorted(name[device] for device in team)) for team in hosts) >= tuple(hosts) for name in names
    )


def _seconds(plan: Plan, limit: float) -> float:
    if memory_shortfall(plan) > 0 or least_step_seconds(plan, whole_backwards=True) >= limit:
        return inf
    try:
        return step_seconds(under(find_scheduler("interleaved" if plan.shares_devices else "1f1b"), plan))
    except (Infeasible, InvalidInput):
        return inf
