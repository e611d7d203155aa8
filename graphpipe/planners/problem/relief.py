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
from math import inf
from sys import maxsize
from typing import Literal, NamedTuple

import numpy as np

from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

Decision = Literal["keep", "recompute", "offload"]
_WORK = 6_000
"""Most partial choices over all operators of a stage. Beyond it, those that are nearly like others are dropped too."""
_EXACT = 12
"""Operators of a stage up to which the best choice is found."""
_FEWEST = 16
"""Partial choices that are kept after each operator in any case."""
_SHARE = 2
"""The same of those that decide alike about the operators that later ones read."""
_FEW = 16
"""Partial choices up to which Python compares them faster than numpy."""
_AT_ONCE = 256
"""Partial choices that are compared with all others at once."""


class _Choice(NamedTuple):
    # A partial choice, for the operators so far.
    seconds: float
    """Of recomputed forwards, and of copies beyond the window."""
    bytes: float
    copied: float
    """Seconds of copies within the window."""
    region: float
    """The largest recomputed operator, in bytes."""
    decisions: tuple[Decision, ...]


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
    most_seconds: float = inf
    """Per micro-batch: decisions that take longer are not looked for."""

    def fitted(self, capacity_bytes: float) -> Stage | None:
        """Return the stage with the decisions of fewest seconds that need at most so many bytes; None if none does."""
        kept = replace(self.stage, recompute="none", offload=())
        if self._bytes(kept) <= capacity_bytes:
            return kept
        found = [*self._found(capacity_bytes, self.most_seconds), replace(kept, recompute="full")]
        if len(self.stage.ops) <= _EXACT and (known := [each for each in found if self._bytes(each) <= capacity_bytes]):
            found += self._found(capacity_bytes, min(map(self.added_seconds, known)), exact=True)
        fitting = [stage for stage in found if self._bytes(stage) <= capacity_bytes]
        return min(fitting, key=self.added_seconds, default=None)

    def added_seconds(self, stage: Stage) -> float:
        """Return the seconds per micro-batch that the decisions of a stage take on its slowest device."""
        samples, model = stage.micro_batch / stage.degree, self.plan.cost_model
        tasks = model.tasks_seconds(stage.ops, stage.devices, samples, stage.recompute)
        plain = model.tasks_seconds(stage.ops, stage.devices, samples)
        again = max(task.backward - before.backward for task, before in zip(tasks, plain, strict=True))
        copied = 2 * stage_memory(model, stage).offloaded * samples
        return again + max(0.0, copied * _copy_seconds(self.plan, stage) - self.window_seconds)

    def _bytes(self, stage: Stage) -> float:
        return stage_memory(self.plan.cost_model, stage).total(stage.in_flight / stage.degree)

    def _decided(self, decisions: Sequence[Decision]) -> Stage:
        named = list(zip(self._order(), decisions, strict=True))
        again = tuple(name for name, decision in named if decision == "recompute")
        away = tuple(name for name, decision in named if decision == "offload")
        return replace(self.stage, recompute=again or "none", offload=away)

    def _order(self) -> list[str]:
        inside = frozenset(self.stage.ops)
        return [name for name in self.plan.graph.order if name in inside]

    def _found(self, capacity_bytes: float, limit_seconds: float, *, exact: bool = False) -> list[Stage]:
        return [self._decided(each.decisions) for each in self._choices(capacity_bytes, limit_seconds, exact=exact)]

    def _choices(self, capacity_bytes: float, limit_seconds: float, *, exact: bool) -> list[_Choice]:
        """Return the choices for all operators, of those that fit below the limit, that no other one beats.

        All of them are returned if they must be exact. Otherwise some may be dropped.
        """
        order = self._order()
        ops = _StageOps.of(self.plan, self.stage, order)
        memory = stage_memory(self.plan.cost_model, replace(self.stage, recompute="none", offload=()))
        limit = capacity_bytes - float(memory.total(ops.in_flight) - memory.saved * ops.in_flight)
        most = max(_FEWEST, _WORK // len(order)) if not exact else maxsize
        groups: dict[tuple[Decision, ...], list[_Choice]] = {(): [_Choice(0.0, 0.0, 0.0, 0.0, ())]}
        for number, open_ops in enumerate(ops.open):
            found: dict[tuple[Decision, ...], list[_Choice]] = {}
            for choice in (choice for each in groups.values() for choice in each):
                for grown in self._grown(ops, choice, number):
                    if grown.bytes + grown.region <= limit * (1 + 1e-9) and grown.seconds < limit_seconds:
                        frontier: tuple[Decision, ...] = tuple([grown.decisions[at] for at in open_ops])
                        found.setdefault(frontier, []).append(grown)
            found = _spread(found, ops, most // _SHARE)
            share = max(_SHARE, most // max(1, len(found)))
            groups = {frontier: _unbeaten(choices, share) for frontier, choices in found.items()}
        return [choice for choices in groups.values() for choice in choices]

    def _grown(self, ops: "_StageOps", choice: _Choice, number: int) -> Iterator[_Choice]:
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
            yield _Choice(seconds, count, copied, max(choice.region, region), decisions)


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


def _copy_seconds(plan: Plan, stage: Stage) -> float:
    """Return the seconds in which the slowest device of a stage copies a byte to the memory of its node, or back."""
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
    groups: dict[tuple[Decision, ...], list[_Choice]], ops: _StageOps, most: int
) -> dict[tuple[Decision, ...], list[_Choice]]:
    """Return the groups, or so many of them that keep less and less.

    If later operators read many earlier ones, the ways to decide about these multiply.
    """
    if len(groups) <= most:
        return groups

    def kept(choice: _Choice) -> float:
        return sum(saved for saved, each in zip(ops.saved, choice.decisions, strict=False) if each == "keep")

    by_bytes = sorted(groups, key=lambda frontier: (kept(groups[frontier][0]), groups[frontier][0]))
    step = (len(by_bytes) - 1) / (most - 1)
    return {frontier: groups[frontier] for frontier in (by_bytes[round(turn * step)] for turn in range(most))}


def _unbeaten(choices: Sequence[_Choice], most: int) -> list[_Choice]:
    """Return the choices that no other one beats in seconds, bytes, copies and region; at most so many."""
    ordered = sorted(choices)
    found = _unbeaten_of_few(ordered) if len(ordered) <= _FEW else _unbeaten_of_many(ordered)
    if len(found) <= most:
        return found
    by_bytes = sorted(found, key=lambda choice: choice.bytes)
    step = (len(by_bytes) - 1) / (most - 1)
    return [by_bytes[round(turn * step)] for turn in range(most)]


def _unbeaten_of_few(ordered: Sequence[_Choice]) -> list[_Choice]:
    found: list[_Choice] = []
    for choice in ordered:
        _, count, copied, region, _ = choice
        # An earlier choice takes as many seconds at most. What a beaten one beats, the one that beats it beats too.
        if not any(each[1] <= count and each[2] <= copied and each[3] <= region for each in found):
            found.append(choice)
    return found


def _unbeaten_of_many(ordered: Sequence[_Choice]) -> list[_Choice]:
    figures = np.array([choice[1:4] for choice in ordered])
    found: list[_Choice] = []
    for first in range(0, len(ordered), _AT_ONCE):
        own = figures[first : first + _AT_ONCE]
        # Beaten ones count too here.
        beats = (figures[None, : first + len(own)] <= own[:, None]).all(axis=2)
        unbeaten = np.flatnonzero(~np.tril(beats, first - 1).any(axis=1))
        found += [ordered[first + at] for at in unbeaten.tolist()]
    return found
