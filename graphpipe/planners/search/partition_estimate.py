"""A partition judged before any device is assigned: samples in flight, memory and step time, in microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Part, Problem, crossing_bytes
from graphpipe.planners.search.size_settings import far_bandwidth, smallest_memory_bytes, stage_seconds
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.plan import one_way_pairs

Array = NDArray[np.float64]
_FORWARD_SHARE = 1 / 3
"""Of a stage's seconds, about: candidates are ranked by it, no more."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A partition and what is known of it."""

    parts: tuple[Part, ...]
    in_flight: tuple[int, ...]
    step_seconds: float
    """Closed form, as `bounds.estimated_step_seconds`, on the slowest device type and links."""
    split_seconds: float
    """The same where the schedule may split the backward: only the first micro-batch's way forward is waited for."""
    bottleneck_seconds: float
    """Seconds that the slowest stage needs for the mini-batch, never waiting."""
    spare_bytes: tuple[float, ...]
    """Per stage, what the smallest device has left (negative: what it lacks)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Judges partitions of one problem."""

    problem: Problem
    costs: CostModel
    chain: bool
    """Stages follow each other also where they do not feed each other."""
    _seconds: dict[tuple[int, int], Array] = field(default_factory=dict[tuple[int, int], Array])
    _known: dict[Part, "_Load"] = field(default_factory=dict[Part, "_Load"])

    def draft(self, parts: Sequence[Part]) -> Draft:
        """Return the draft of a partition, its stages in topological order."""
        crossing = crossing_bytes(self.problem.graph, parts)
        followers: list[set[int]] = [set() for _ in parts]
        for source, target in crossing:
            followers[source].add(target)
        if self.chain:
            for stage in range(len(parts) - 1):
                followers[stage].add(stage + 1)
        successors = [sorted(after) for after in followers]
        in_flight = in_flight_samples(
            self.problem.batch_size, [part.micro_batch for part in parts], [part.burst for part in parts], successors
        )
        loads = [self._load(part) for part in parts]
        busy = self._busy(parts, loads, crossing)
        batch = self.problem.batch_size
        rounds = [batch / part.micro_batch for part in parts]
        return Draft(
            tuple(parts),
            in_flight,
            self._step_seconds(busy, rounds, successors),
            self._split_seconds(busy, rounds, successors),
            float(max(count * seconds for count, seconds in zip(rounds, busy, strict=True))),
            self._spare_bytes(parts, loads, crossing, in_flight),
        )

    def _busy(
        self, parts: Sequence[Part], loads: Sequence["_Load"], crossing: dict[tuple[int, int], float]
    ) -> list[float]:
        """Return the seconds per micro-batch of every stage."""
        busy = [load.seconds for load in loads]
        one_way = one_way_pairs(self.problem.graph, [part.ops for part in parts])
        bandwidth = far_bandwidth(self.problem)
        for (source, target), count in crossing.items():
            ways = 1 if (source, target) in one_way else 2
            way = count / bandwidth / min(parts[source].degree, parts[target].degree)
            for stage in (source, target):
                once = way * parts[stage].micro_batch
                busy[stage] = max(busy[stage], once) if self.problem.cluster.overlap else busy[stage] + ways * once
        return busy

    def _step_seconds(self, busy: Sequence[float], rounds: Sequence[float], successors: list[list[int]]) -> float:
        longest = [0.0] * len(busy)
        for stage in reversed(range(len(busy))):
            longest[stage] = busy[stage] + max((longest[after] for after in successors[stage]), default=0.0)
        rest = max((count - 1) * seconds for count, seconds in zip(rounds, busy, strict=True))
        return float(rest + max(longest))

    def _split_seconds(self, busy: Sequence[float], rounds: Sequence[float], successors: list[list[int]]) -> float:
        begin = [0.0] * len(busy)
        for stage, after in enumerate(successors):
            for other in after:
                begin[other] = max(begin[other], begin[stage] + _FORWARD_SHARE * busy[stage])
        return float(max(start + count * each for start, count, each in zip(begin, rounds, busy, strict=True)))

    def _spare_bytes(
        self,
        parts: Sequence[Part],
        loads: Sequence["_Load"],
        crossing: dict[tuple[int, int], float],
        in_flight: Sequence[int],
    ) -> tuple[float, ...]:
        capacity = smallest_memory_bytes(self.problem)
        received = [0.0] * len(parts)
        for (_, target), count in crossing.items():
            received[target] += count
        # Samples that a stage holds what was saved of: all in flight, or, computed again, those of one micro-batch.
        return tuple(
            capacity
            - load.fixed_bytes
            - ((part.micro_batch if part.recompute == "full" else held) * load.saved_bytes + held * more) / part.degree
            for part, load, held, more in zip(parts, loads, in_flight, received, strict=True)
        )

    def _load(self, part: Part) -> "_Load":
        """Look up or sum what the operators of a part add up to: most parts are in many drafts."""
        if (known := self._known.get(part)) is None:
            key = part.micro_batch, part.degree
            if key not in self._seconds:
                self._seconds[key] = stage_seconds(self.problem, self.costs, *key)
            at = self.costs.positions(part.ops)
            seconds, saved = float(self._seconds[key][at].sum()), float(self.costs.saved_bytes[at].sum())
            fixed = self.costs.state_bytes(part.ops)
            if self.costs.knows_temporaries:
                fixed += float(self.costs.temporary_bytes(part.micro_batch / part.degree)[at].max())
            known = self._known[part] = _Load(seconds, saved, fixed)
        return known


class _Load(NamedTuple):
    seconds: float
    """Per micro-batch, transfers apart."""
    saved_bytes: float
    """Per sample in flight."""
    fixed_bytes: float
    """However many samples are in flight: of weights, gradients and optimizer state, and while an operator runs."""
