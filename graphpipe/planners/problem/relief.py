"""Fit a stage into memory: what its operators keep, what they recompute, and what they offload.

Each operator is kept, recomputed or offloaded. With n samples in flight and micro-batches of m samples on each device,

    bytes     state + received n + sum of kept n + sum of offloaded min(n, 2 m) + largest recomputed m + temporary
    seconds   sum of recomputed forwards + max(0, 2 offloaded m / host bandwidth - window)

Among the choices whose bytes fit, one of the fewest seconds per micro-batch is wanted. DawnPiper takes the lowest cost
per byte freed until the stage fits. That can free too much, so here operators are decided one after the other, and only
those partial choices are kept that no other one beats in everything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.planners.problem.least_relief import LeastRelief
from graphpipe.planners.problem.relief_choices import Choice, Decision, unbeaten
from graphpipe.plans.device_memory import resting_bytes, stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_WORK = 6_000
"""Most partial choices over all operators of a stage. Beyond it, those that are nearly like others are dropped too."""
_EXACT = 12
"""Operators of a stage up to which the best choice is found, unless there are too many partial choices."""
_MOST_EXACT = 6_000
"""Partial choices after each of these operators that are too many."""
_FEWEST = 16
"""Partial choices that are kept after each operator in any case."""
_SHARE = 2
"""The same of those that decide alike about the operators that later ones read."""


@dataclass(frozen=True, slots=True)
class _Reading:
    # A value that operators of the stage, or of other stages, read.
    bytes: float
    readers: tuple[int, ...]
    """In the stage, by position."""
    leaves: bool
    """Whether another stage reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Finds the decisions for one stage of a plan."""

    plan: Plan
    stage: Stage
    window_seconds: float
    """Copies of a micro-batch take no time as far as they fit into this."""
    offloads: bool = True
    """Whether operators may be offloaded."""
    most_offloaded: float = inf
    """Bytes that have room where they rest."""
    most_seconds: float = inf
    """Per micro-batch: decisions that take longer are not looked for."""

    def fitted(self, capacity_bytes: float) -> Stage | None:
        """Return the stage with the decisions of fewest seconds that need at most so many bytes; None if none does."""
        kept = self.stage.keeping
        if self._bytes(kept) <= capacity_bytes:
            return kept
        full = replace(kept, recompute="full")
        found = [full] if self._bytes(full) <= capacity_bytes else []
        found += self._found(capacity_bytes, self.most_seconds)
        if len(self.stage.ops) <= _EXACT and found and (least := min(map(self.added_seconds, found))):
            found += self._found(capacity_bytes, least, exact=True)
        return min(found, key=self.added_seconds, default=None)

    def added_seconds(self, stage: Stage) -> float:
        """Return the seconds per micro-batch that the decisions of a stage take on its slowest device."""
        samples, model = stage.micro_batch / stage.degree, self.plan.cost_model
        tasks = model.tasks_seconds(stage.ops, stage.devices, samples, stage.recompute)
        plain = model.tasks_seconds(stage.ops, stage.devices, samples)
        again = max(task.backward - before.backward for task, before in zip(tasks, plain, strict=True))
        copied = 2 * stage_memory(model, stage).offloaded * samples
        return again + max(0.0, copied * _copy_seconds(self.plan, stage) - self.window_seconds)

    def _fits(self, stage: Stage, capacity_bytes: float) -> bool:
        return self._bytes(stage) <= capacity_bytes and resting_bytes(self.plan, stage) <= self.most_offloaded

    def _bytes(self, stage: Stage) -> float:
        return stage_memory(self.plan.cost_model, stage).total(stage.in_flight / stage.degree)

    def _decided(self, decisions: Sequence[Decision]) -> Stage:
        named = list(zip(self._order(), decisions, strict=True))
        again = tuple(name for name, decision in named if decision == "recompute")
        away = tuple(name for name, decision in named if decision == "offload")
        to = self.stage.offload_to if away else ()
        return replace(self.stage, recompute=again or "none", offload=away, offload_to=to)

    def _order(self) -> list[str]:
        inside = frozenset(self.stage.ops)
        return [name for name in self.plan.graph.order if name in inside]

    def _found(self, capacity_bytes: float, limit_seconds: float, *, exact: bool = False) -> list[Stage]:
        """Return the stage with the decisions of fewest seconds, if some that fit are found."""
        choices = self._choices(capacity_bytes, limit_seconds, exact=exact)
        stages = (self._decided(each.decisions) for each in sorted(choices, key=_quickest))
        return list(islice((stage for stage in stages if self._fits(stage, capacity_bytes)), 1))

    def _choices(self, capacity_bytes: float, limit_seconds: float, *, exact: bool) -> list[Choice]:
        """Return the choices for all operators, of those that fit below the limit, that no other one beats.

        More of them are dropped if they need not be exact.
        """
        order = self._order()
        ops = _StageOps.of(self.plan, self.stage, order)
        memory = stage_memory(self.plan.cost_model, self.stage.keeping)
        limit = capacity_bytes - float(memory.total(ops.in_flight) - memory.saved * ops.in_flight)
        most = _MOST_EXACT if exact else max(_FEWEST, _WORK // len(order))
        groups: dict[tuple[Decision, ...], list[Choice]] = {(): [Choice(0.0, 0.0, 0.0, 0.0, 0.0, ())]}
        for number, open_ops in enumerate(ops.open):
            found: dict[tuple[Decision, ...], list[Choice]] = {}
            rest = self._rest(ops, number)
            for choice in (choice for each in groups.values() for choice in each):
                for grown in self._grown(ops, choice, number):
                    spare = limit * (1 + 1e-9) - grown.bytes - grown.region
                    if spare < 0 or grown.seconds >= limit_seconds or grown.rests > self.most_offloaded:
                        continue
                    if not exact or self._least_seconds(ops, rest, open_ops, grown, spare) < limit_seconds:
                        frontier: tuple[Decision, ...] = tuple([grown.decisions[at] for at in open_ops])
                        found.setdefault(frontier, []).append(grown)
            found = _spread(found, ops, most // _SHARE)
            share = max(_SHARE, most // max(1, len(found)))
            groups = {frontier: unbeaten(choices, share) for frontier, choices in found.items()}
        return [choice for choices in groups.values() for choice in choices]

    def _rest(self, ops: "_StageOps", number: int) -> LeastRelief:
        """Return the bound for the operators after this one."""
        stays = min(ops.in_flight, MOVING_MICRO_BATCHES * ops.samples)
        frees = self.offloads and stays < ops.in_flight
        copies = 2 * ops.copy_seconds * ops.samples / (ops.in_flight - stays) if frees else inf
        after = slice(number + 1, None)
        return LeastRelief.of([each * ops.in_flight for each in ops.saved[after]], ops.forward[after], copies)

    def _least_seconds(
        self, ops: "_StageOps", rest: LeastRelief, open_ops: Sequence[int], choice: Choice, spare: float
    ) -> float:
        """Return a lower bound of the seconds of all choices that continue this one in so many spare bytes."""
        held = {"keep": 0.0, "recompute": 0.0, "offload": 0.0}
        for at in open_ops:
            held[choice.decisions[at]] += ops.saved[at] * ops.in_flight
        excess = rest.kept + held["keep"] + held["offload"] - spare
        least = rest.seconds(excess, self.window_seconds - choice.copied, held["offload"])
        return choice.seconds + least * (1 - 1e-9)

    def _grown(self, ops: "_StageOps", choice: Choice, number: int) -> Iterator[Choice]:
        """Yield a choice with each decision of the next operator. Operators whose last reader this is are counted."""
        ways: list[tuple[Decision, float, float]] = [("keep", 0.0, 0.0)]
        if ops.saved[number]:
            ways.append(("recompute", ops.forward[number], ops.saved[number] * ops.samples))
            if self.offloads:
                ways.append(("offload", 0.0, 0.0))
        for decision, seconds, region in ways:
            decisions = (*choice.decisions, decision)
            count, moved = choice.bytes, 0.0
            for each in ops.closed[number]:
                kept = ops.kept(each, decisions)
                away = max(0.0, ops.saved[each] - kept) if decisions[each] == "offload" else 0.0
                count += kept * ops.in_flight + away * min(ops.in_flight, MOVING_MICRO_BATCHES * ops.samples)
                moved += away * ops.samples
            copied = choice.copied + 2 * ops.copy_seconds * moved
            seconds += choice.seconds + max(0.0, copied - self.window_seconds)
            copied = min(copied, self.window_seconds)
            rests = 0.0 if self.most_offloaded == inf else choice.rests + moved * ops.in_flight / ops.samples
            yield Choice(seconds, count, copied, max(choice.region, region), rests, decisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageOps:
    """The operators of a stage by position, in topological order."""

    samples: float
    """Of a micro-batch on one device."""
    in_flight: float
    copy_seconds: float
    """Of a byte, to the memory of the node or back."""
    forward: list[float]
    """Seconds that a recomputation takes."""
    saved: list[float]
    """Per sample, as `OpBytes.saved_of` counts it."""
    outputs: list[float]
    """The same without what each forward keeps once, which no other operator reads."""
    values: list[list[_Reading]]
    open: list[list[int]]
    """After each operator: those so far of which a reader is not decided yet."""
    closed: list[list[int]]
    """With each operator: those whose last reader, or which itself, it is."""

    @staticmethod
    def of(plan: Plan, stage: Stage, order: Sequence[str]) -> "_StageOps":
        model, samples = plan.cost_model, stage.micro_batch / stage.degree
        at = model.positions(order)
        kinds = {plan.cluster.devices[device].type for device in stage.devices}
        forward = max((model.seconds(kind, samples)[0][at] for kind in kinds), key=lambda each: float(each.sum()))
        pairs = zip(order, forward.tolist(), strict=True)
        values = _values(plan, {name: place for place, name in enumerate(order)})
        readers = [[reader for value in each for reader in value.readers] for each in values]
        last = [max([place, *each]) for place, each in enumerate(readers)]
        return _StageOps(
            samples=samples,
            in_flight=stage.in_flight / stage.degree,
            copy_seconds=_copy_seconds(plan, stage),
            forward=[seconds if name in plan.graph.differentiable else 0.0 for name, seconds in pairs],
            saved=model.op_bytes.saved_of(samples)[at].tolist(),
            outputs=model.op_bytes.saved[at].tolist(),
            values=values,
            open=[[op for op in range(place + 1) if last[op] > place] for place in range(len(order))],
            closed=[[op for op in range(place + 1) if last[op] == place] for place in range(len(order))],
        )

    def kept(self, op: int, decisions: Sequence[Decision]) -> float:
        """Return what an operator keeps per sample, as `ActivationBytes.saved` counts it."""
        own, reads, needs = decisions[op], 0.0, 0.0
        for value in self.values[op]:
            others = [decisions[reader] for reader in value.readers]
            needed = "recompute" in others or (value.leaves and own != "keep")
            elsewhere = "keep" in others or ("offload" in others and own != "offload")
            reads += value.bytes if needed or elsewhere else 0.0
            needs += value.bytes if needed else 0.0
        return max(self.saved[op] if own == "keep" else 0.0, needs, min(self.outputs[op], reads))


def _quickest(choice: Choice) -> tuple[float, float]:
    return choice.seconds, choice.copied


def _copy_seconds(plan: Plan, stage: Stage) -> float:
    """Return the seconds in which the slowest device of a stage copies a byte to where it rests, or back."""
    if stage.offload_to:
        return max(plan.cluster.seconds_per_byte(*pair) for pair in zip(stage.devices, stage.offload_to, strict=True))
    return max(plan.cost_model.copy_seconds(1.0, device) for device in stage.devices)


def _values(plan: Plan, place: dict[str, int]) -> list[list[_Reading]]:
    found: dict[str, dict[tuple[str, str], _Reading]] = {name: {} for name in place}
    for source, target, value, count in plan.graph.reads:
        if source in place:
            known = found[source].get(value, _Reading(0.0, (), False))
            readers = (*known.readers, place[target]) if target in place else known.readers
            leaves = known.leaves or target not in place
            found[source][value] = _Reading(max(known.bytes, count), readers, leaves)
    return [[*each.values()] for each in found.values()]


def _spread(
    groups: dict[tuple[Decision, ...], list[Choice]], ops: _StageOps, most: int
) -> dict[tuple[Decision, ...], list[Choice]]:
    """Return the groups, or so many of them that keep less and less.

    If later operators read many earlier ones, the ways to decide about these multiply.
    """
    if len(groups) <= most:
        return groups

    def kept(choice: Choice) -> float:
        return sum(saved for saved, each in zip(ops.saved, choice.decisions, strict=False) if each == "keep")

    by_bytes = sorted(groups, key=lambda frontier: (kept(groups[frontier][0]), groups[frontier][0]))
    step = (len(by_bytes) - 1) / (most - 1)
    return {frontier: groups[frontier] for frontier in (by_bytes[round(turn * step)] for turn in range(most))}
