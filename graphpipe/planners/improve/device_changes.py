"""Small changes of which devices host which stages, for hill climbing where devices differ, or host several stages.

take      d0 d1 | d2      ->   d0 | d1 d2        also of a device that is not used
swap      d0 d1 | d2      ->   d0 d2 | d1        of devices of different types
merge, split    o1 on d0 | o2 on d1   <->   o1 o2 on d0 d1; stages on the same devices merge there
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphpipe.planners.improve.changes import Hosted, fixed_stages, halves, on_devices
from graphpipe.planners.problem.limits import TAKERS
from graphpipe.planners.problem.partition import Part
from graphpipe.plans.estimates import seconds_per_sample
from graphpipe.plans.plan import Plan

DeviceChange = Callable[[Sequence[Hosted]], list[Hosted] | None]
"""Returns the stages after a change; None if the change is impossible."""


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """The changes of one plan's devices."""

    plan: Plan
    sizes: tuple[int, ...]
    """Micro-batch sizes that stages may have, ascending."""

    def __iter__(self) -> Iterator[DeviceChange]:
        """Yield the changes, those for the slowest stages first."""
        fixed = fixed_stages(self.plan)
        free = [number for number in range(len(self.plan.stages)) if number not in fixed]
        slowest = sorted(free, key=lambda stage: seconds_per_sample(self.plan, stage), reverse=True)
        for taker in slowest[:TAKERS]:
            for device in self._one_of_a_kind(self._unused):
                yield lambda hosted, taker=taker, device=device: self._taken(hosted, None, taker, device)
            for giver in reversed(slowest):
                for device in self._one_of_a_kind(self.plan.stages[giver].devices):
                    yield lambda hosted, giver=giver, taker=taker, device=device: self._taken(
                        hosted, giver, taker, device
                    )
                    for other in self._one_of_a_kind(self.plan.stages[taker].devices):
                        if self._kind(device) != self._kind(other):
                            yield lambda hosted, one=device, other=other: _exchanged(hosted, one, other)
        for edge in self.plan.edges:
            if edge.source in free and edge.target in free:
                yield lambda hosted, edge=edge: self._merged(hosted, edge.source, edge.target)
        for stage in slowest:
            yield lambda hosted, stage=stage: self._split(hosted, stage)

    @property
    def _unused(self) -> tuple[int, ...]:
        used = {device for stage in self.plan.stages for device in stage.devices}
        return tuple(device for device in range(len(self.plan.cluster.devices)) if device not in used)

    def _kind(self, device: int) -> str:
        return self.plan.cluster.devices[device].type

    def _one_of_a_kind(self, devices: Sequence[int]) -> list[int]:
        return list({self._kind(device): device for device in devices}.values())

    def _taken(self, hosted: Sequence[Hosted], giver: int | None, taker: int, device: int) -> list[Hosted] | None:
        part, team = hosted[taker]
        free = giver is None and all(device not in devices for _, devices in hosted)
        given = giver is not None and device in hosted[giver][1]
        larger = self._on(part, {*team, device}) if (free or given) and device not in team else None
        if larger is None:
            return None
        changed = list(hosted)
        changed[taker] = larger
        if giver is not None:
            smaller = self._on(hosted[giver][0], {*hosted[giver][1]} - {device})
            if smaller is None:  # It would have none left, or a number that divides none of the sizes.
                return None
            changed[giver] = smaller
        return changed

    def _merged(self, hosted: Sequence[Hosted], first: int, second: int) -> list[Hosted] | None:
        (one, devices), (other, more) = hosted[first], hosted[second]
        ops = tuple(sorted((*one.ops, *other.ops), key=self.plan.graph.index.__getitem__))
        whole = self._on(replace(one, ops=ops), {*devices, *more})
        if whole is None or one.recompute != other.recompute:
            return None
        changed = list(hosted)
        changed[first] = whole
        return changed[:second] + changed[second + 1 :]

    def _split(self, hosted: Sequence[Hosted], stage: int) -> list[Hosted] | None:
        part, team = hosted[stage]
        by_type = sorted(team, key=lambda device: (self._kind(device), device))
        front, back = by_type[: len(team) // 2], by_type[len(team) // 2 :]
        front = front or [device for device in self._unused if all(device not in others for _, others in hosted)][:1]
        if len(part.ops) < 2 or not front:
            return None
        first, second = halves(self.plan, part, len(front) / (len(front) + len(back)))
        pair = [self._on(replace(part, ops=first), front), self._on(replace(part, ops=second), back)]
        if pair[0] is None or pair[1] is None:
            return None
        return [*hosted[:stage], pair[0], pair[1], *hosted[stage + 1 :]]

    def _on(self, part: Part, devices: Iterable[int]) -> Hosted | None:
        return on_devices(part, devices, self.sizes)


def _exchanged(hosted: Sequence[Hosted], one: int, other: int) -> list[Hosted]:
    names = {one: other, other: one}
    return [(part, tuple(sorted(names.get(device, device) for device in team))) for part, team in hosted]
