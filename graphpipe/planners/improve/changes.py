"""Small changes of a plan's stages, for hill climbing: of operators, micro-batch sizes, devices and cuts.

move      o1 o2 | o3 o4   ->   o1 | o2 o3 o4         resize     b = 4, 4   ->   b = 8, 4    or all to 8, 8
shift     d = 2 | d = 4   ->   d = 3 | d = 3         merge, split     o1 | o2   <->   o1 o2
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, permutations

from graphpipe.planners.problem.limits import TAKERS, TINY
from graphpipe.planners.problem.partition import Part
from graphpipe.plans.estimates import seconds_per_sample
from graphpipe.plans.plan import Plan

Hosted = tuple[Part, tuple[int, ...]]
"""A stage and its devices."""
Change = Callable[[Sequence[Part]], list[Part] | None]
"""Returns the stages after a change; None if the change is impossible. Degrees may need other devices."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one plan."""

    plan: Plan
    sizes: tuple[int, ...]
    """Micro-batch sizes that stages may have, ascending."""

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes, those that most often shorten a step first."""
        fixed = fixed_stages(self.plan)
        free = [number for number in range(len(self.plan.stages)) if number not in fixed]
        moves = list(self._moves())
        order = self.plan.graph.index
        for name, stage in moves:
            yield lambda parts, name=name, stage=stage: _moved(parts, name, stage, order)
        for stage in free:
            yield lambda parts, stage=stage: self._resized(parts, stage, -1)
            yield lambda parts, stage=stage: self._resized(parts, stage, 1)
        for step in (-1, 1):
            yield lambda parts, step=step: self._all_resized(parts, free, step)
        yield from self._structural(free)
        for one, other in self._pairs():
            yield lambda parts, one=one, other=other: _swapped(parts, one, other, order)

    def _moves(self) -> list[tuple[str, int]]:
        """Return operators with the stages that they may move to: neighbours, or all stages of a small plan."""
        stages, stage_of, fixed = self.plan.stages, self._stage_of, fixed_stages(self.plan)
        moves = dict[tuple[str, int], None]()
        for edge in self.plan.graph.edges:
            moves |= {(edge.source, stage_of[edge.target]): None, (edge.target, stage_of[edge.source]): None}
        if self._small:
            moves |= {(name, stage): None for name in stage_of for stage in range(len(stages))}
        return [(name, stage) for name, stage in moves if not {stage, stage_of[name]} & fixed]

    def _pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of operators of a small plan that may change places."""
        if not self._small:
            return []
        fixed = fixed_stages(self.plan)
        return list(combinations([name for name, stage in self._stage_of.items() if stage not in fixed], 2))

    @property
    def _stage_of(self) -> dict[str, int]:
        return {name: number for number, stage in enumerate(self.plan.stages) for name in stage.ops}

    @property
    def _small(self) -> bool:
        return len(self.plan.graph.ops) * len(self.plan.stages) <= TINY

    def _structural(self, free: Sequence[int]) -> Iterator[Change]:
        """Yield the changes of degrees and of the number of stages."""
        slowest = sorted(free, key=lambda stage: seconds_per_sample(self.plan, stage), reverse=True)[:TAKERS]
        for taker in slowest:
            yield lambda parts, taker=taker: self._grown(parts, taker)
        for giver, taker in permutations(free, 2):
            if taker in slowest:
                yield lambda parts, giver=giver, taker=taker: self._shifted(parts, giver, taker)
        for edge in self.plan.edges:
            if edge.source in free and edge.target in free:
                yield lambda parts, edge=edge: self._merged(parts, edge.source, edge.target)
        for stage in free:
            yield lambda parts, stage=stage: self._split(parts, stage)

    def _resized(self, parts: Sequence[Part], stage: int, step: int) -> list[Part] | None:
        size = self._next_size(parts[stage].micro_batch, (parts[stage].degree,), step)
        return _with(parts, stage, replace(parts[stage], micro_batch=size)) if size else None

    def _all_resized(self, parts: Sequence[Part], free: Sequence[int], step: int) -> list[Part] | None:
        sizes = {parts[stage].micro_batch for stage in free}
        size = self._next_size(sizes.pop(), [parts[stage].degree for stage in free], step) if len(sizes) == 1 else None
        if size is None:
            return None
        return [replace(part, micro_batch=size) if stage in free else part for stage, part in enumerate(parts)]

    def _next_size(self, size: int, degrees: Sequence[int], step: int) -> int | None:
        """Return the next larger or smaller size that all degrees divide."""
        fitting = [fit for fit in self.sizes if all(fit % degree == 0 for degree in degrees)]
        beyond = [fit for fit in fitting if (fit > size if step > 0 else fit < size)]
        return (beyond[0] if step > 0 else beyond[-1]) if beyond else None

    def _at_degree(self, part: Part, degree: int) -> Part | None:
        return with_degree(part, degree, self.sizes)

    def _grown(self, parts: Sequence[Part], taker: int) -> list[Part] | None:
        """Return the stages with all spare devices at one of them."""
        spare = len(self.plan.cluster.devices) - sum(part.degree for part in parts)
        if spare <= 0:
            return None
        grown = self._at_degree(parts[taker], parts[taker].degree + spare)
        return None if grown is None or grown.degree <= parts[taker].degree else _with(parts, taker, grown)

    def _shifted(self, parts: Sequence[Part], giver: int, taker: int) -> list[Part] | None:
        small = self._at_degree(parts[giver], parts[giver].degree - 1)
        if small is None:
            return None
        return self._grown(_with(parts, giver, small), taker)

    def _merged(self, parts: Sequence[Part], first: int, second: int) -> list[Part] | None:
        one, other = parts[first], parts[second]
        ops = tuple(sorted((*one.ops, *other.ops), key=self.plan.graph.index.__getitem__))
        whole = self._at_degree(replace(one, ops=ops), one.degree + other.degree)
        if whole is None or one.recompute != other.recompute:
            return None
        return [part for number, part in enumerate(_with(parts, first, whole)) if number != second]

    def _split(self, parts: Sequence[Part], stage: int) -> list[Part] | None:
        part = parts[stage]
        back = self._at_degree(part, part.degree // 2)
        front = self._at_degree(part, part.degree - back.degree) if back else None
        if front is None or back is None or len(part.ops) < 2:
            return None
        first, second = halves(self.plan, part, front.degree / (front.degree + back.degree))
        pair = replace(front, ops=first), replace(back, ops=second)
        return [*parts[:stage], *pair, *parts[stage + 1 :]]


def fixed_stages(plan: Plan) -> set[int]:
    """Return the stages with whole-batch operators, which keep these and their micro-batch."""
    graph = plan.graph
    return {n for n, stage in enumerate(plan.stages) if any(graph[name].whole_batch for name in stage.ops)}


def on_devices(part: Part, devices: Iterable[int], sizes: Sequence[int]) -> Hosted | None:
    """Return the part on exactly these devices; None if none of the sizes can be divided among them."""
    team = tuple(sorted(devices))
    fitted = with_degree(part, len(team), sizes)
    return None if fitted is None or fitted.degree < len(team) else (fitted, team)


def with_degree(part: Part, degree: int, sizes: Sequence[int]) -> Part | None:
    """Return the part with the largest possible degree up to `degree`, and the micro-batch of `sizes` that is nearest
    to its own."""
    for less in range(degree, 0, -1):
        if fitting := [size for size in sizes if size % less == 0]:
            nearest = min(fitting, key=lambda size: max(size / part.micro_batch, part.micro_batch / size))
            return replace(part, degree=less, micro_batch=nearest)
    return None


def halves(plan: Plan, part: Part, share: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the operators of a part in two runs, of which the first takes about a share of their time together.

    Args:
        plan: gives costs and the order of the operators.
        part: of at least two operators.
        share: between 0 and 1.
    """
    ops, model = sorted(part.ops, key=plan.graph.order.index), plan.cost_model
    tasks = [model.task_seconds((name,), 0, part.micro_batch / part.degree, "none") for name in ops]
    *sums, whole = accumulate(task.forward + task.backward for task in tasks)
    at = 1 + min(range(len(sums)), key=lambda at: abs(sums[at] - share * whole))
    return tuple(ops[:at]), tuple(ops[at:])


def _with(parts: Sequence[Part], stage: int, part: Part) -> list[Part]:
    return [*parts[:stage], part, *parts[stage + 1 :]]


def _moved(parts: Sequence[Part], name: str, stage: int, order: dict[str, int]) -> list[Part] | None:
    home = _home(parts, name)
    if home == stage or len(parts[home].ops) == 1:
        return None
    moved = list(parts)
    moved[home] = replace(parts[home], ops=tuple(other for other in parts[home].ops if other != name))
    moved[stage] = replace(parts[stage], ops=tuple(sorted((*parts[stage].ops, name), key=order.__getitem__)))
    return moved


def _swapped(parts: Sequence[Part], one: str, other: str, order: dict[str, int]) -> list[Part] | None:
    homes = _home(parts, one), _home(parts, other)
    if homes[0] == homes[1]:
        return None
    swapped = list(parts)
    for home, leaving, coming in zip(homes, (one, other), (other, one), strict=True):
        ops = (*(name for name in parts[home].ops if name != leaving), coming)
        swapped[home] = replace(parts[home], ops=tuple(sorted(ops, key=order.__getitem__)))
    return swapped


def _home(parts: Sequence[Part], name: str) -> int:
    return next(number for number, part in enumerate(parts) if name in part.ops)
