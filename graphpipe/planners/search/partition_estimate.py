"""Estimates of a partition before devices are assigned: samples in flight, memory and step time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel, StageMemory
from graphpipe.planners.problem.partition import Crossing, Part, Problem, crossing_bytes
from graphpipe.planners.problem.stage_costs import (
    far_bandwidth,
    smallest_memory_bytes,
    stage_seconds,
    update_seconds_per_byte,
)
from graphpipe.plans.joint_edges import one_way_pairs

Array = NDArray[np.float64]
MessageSeconds = dict[tuple[int, int], float]
"""Seconds of messages per sample, by the positions of both stages."""
_FORWARD_SHARE = 1 / 3
"""Approximate share of a stage's seconds, used only to rank candidates."""


@dataclass(frozen=True, slots=True)
class PartitionEstimate:
    """A partition with its estimated time and memory."""

    parts: tuple[Part, ...]
    in_flight: tuple[int, ...]
    step_seconds: float
    """Seconds of a step in closed form, as `estimates.estimated_step_seconds`, on the slowest device type and links, or
    more exactly for unsplit backwards (`PartitionEstimator.waiting`)."""
    split_seconds: float
    """Seconds of a step if backwards may be split. A stage then only waits for the first forward to arrive."""
    bottleneck_seconds: float
    """Seconds of the slowest stage for the mini-batch, without waiting."""
    spare_bytes: tuple[float, ...]
    """Free memory of the smallest device of each stage; negative if memory is missing."""


@dataclass(frozen=True, slots=True)
class PartitionEstimator:
    """Estimates partitions of one problem."""

    problem: Problem
    costs: CostModel
    chain: bool = False
    """Whether stages that do not feed each other still follow each other."""
    waiting: bool = False
    """Whether to count the time that stages wait for late messages, because 1F1B keeps few samples in flight, and the
    updates after the last micro-batch, as for a schedule with unsplit backwards. Other schedules can fill these times.
    For them the updates are spread over the mini-batch."""
    _op_figures: dict[tuple[int, int], tuple[Array, Array]] = field(
        default_factory=dict[tuple[int, int], tuple[Array, Array]]
    )
    """Seconds of every operator, and the bytes per sample that it saves, by micro-batch size and degree."""
    _updates: dict[int, float] = field(default_factory=dict[int, float])
    """Seconds of an update per byte, by degree."""
    _known: dict[Part, "_Load"] = field(default_factory=dict[Part, "_Load"])
    _crossing: dict[tuple[Part, ...], Crossing] = field(default_factory=dict[tuple[Part, ...], Crossing])

    def estimate(self, parts: Sequence[Part]) -> PartitionEstimate:
        """Return the estimate of a partition, its stages in topological order."""
        if (crossing := self._crossing.get(key := tuple(parts))) is None:
            crossing = self._crossing[key] = crossing_bytes(self.problem.graph, parts)
        followers: list[set[int]] = [set() for _ in parts]
        for source, target in crossing:
            followers[source].add(target)
        if self.chain:
            for stage in range(len(parts) - 1):
                followers[stage].add(stage + 1)
        successors = [sorted(after) for after in followers]
        sizes, bursts = [part.micro_batch for part in parts], [part.burst for part in parts]
        in_flight = self.problem.in_flight(sizes, bursts, successors)
        loads = [self._load(part) for part in parts]
        messages = self._message_seconds(parts, crossing)
        busy = self._busy(parts, loads, messages)
        batch = self.problem.batch_size
        rounds = [batch / part.micro_batch for part in parts]
        updates = [load.update for load in loads]
        work, paces = busy, busy
        if self.waiting:
            work = [max(0.0, own - update / count) for own, update, count in zip(busy, updates, rounds, strict=True)]
            paces = self._paces(parts, work, messages, successors, in_flight)
        return PartitionEstimate(
            key,
            in_flight,
            self._step_seconds(work, paces, rounds, successors, updates if self.waiting else [0.0] * len(parts)),
            self._split_seconds(busy, rounds, successors),
            float(max(count * seconds for count, seconds in zip(rounds, busy, strict=True))),
            self._spare_bytes(parts, loads, crossing, in_flight),
        )

    def _busy(self, parts: Sequence[Part], loads: Sequence["_Load"], messages: MessageSeconds) -> list[float]:
        """Return the seconds per micro-batch of every stage."""
        busy = [load.seconds for load in loads]
        one_way = one_way_pairs(self.problem.graph, [part.ops for part in parts])
        overlap = self.problem.cluster.overlap
        for pair, per_sample in messages.items():
            directions = 1 if pair in one_way else 2
            for stage in pair:
                once = per_sample * parts[stage].micro_batch
                busy[stage] = max(busy[stage], once) if overlap else busy[stage] + directions * once
        return busy

    def _message_seconds(self, parts: Sequence[Part], crossing: Crossing) -> MessageSeconds:
        """Return the seconds per sample of the messages between stages."""
        bandwidth = far_bandwidth(self.problem)
        return {
            (source, target): count / bandwidth / min(parts[source].degree, parts[target].degree)
            for (source, target), count in crossing.items()
        }

    def _paces(
        self,
        parts: Sequence[Part],
        busy: Sequence[float],
        messages: MessageSeconds,
        successors: list[list[int]],
        in_flight: Sequence[int],
    ) -> list[float]:
        """Return the seconds from one micro-batch to the next at every stage.

        A stage with k micro-batches in flight starts the next one when the first of them has come back, after the
        longest way to the last stage and back.
        """
        trips, paces = list(busy), list(busy)
        if not self.problem.cluster.overlap:
            messages = {}  # They are in `busy`.
        for stage in reversed(range(len(parts))):
            for after in successors[stage]:
                message = messages.get((stage, after), 0.0) * parts[stage].micro_batch
                trips[stage] = max(trips[stage], busy[stage] + 2 * message + trips[after])
            if in_flight[stage] < self.problem.batch_size:
                paces[stage] = max(busy[stage], trips[stage] * parts[stage].micro_batch / in_flight[stage])
        return paces

    def _step_seconds(
        self,
        work: Sequence[float],
        paces: Sequence[float],
        rounds: Sequence[float],
        successors: list[list[int]],
        updates: Sequence[float],
    ) -> float:
        """Return the first micro-batch's way through all stages, the pace of the rest, and the updates after that.

        All stages keep the pace of the slowest. A stage updates its weights while the last backward passes the stages
        before it (DAPPLE, section 4).
        """
        before = [0.0] * len(work)
        for stage, after in enumerate(successors):
            for other in after:
                before[other] = max(before[other], before[stage] + work[stage])
        fill = max(start + own for start, own in zip(before, work, strict=True))
        rest = max((count - 1) * seconds for count, seconds in zip(rounds, paces, strict=True))
        exposed = (update - (1 - _FORWARD_SHARE) * start for update, start in zip(updates, before, strict=True))
        return float(rest + fill + max(0.0, *exposed))

    def _split_seconds(self, busy: Sequence[float], rounds: Sequence[float], successors: list[list[int]]) -> float:
        begin = [0.0] * len(busy)
        for stage, after in enumerate(successors):
            for other in after:
                begin[other] = max(begin[other], begin[stage] + _FORWARD_SHARE * busy[stage])
        return float(max(start + count * seconds for start, count, seconds in zip(begin, rounds, busy, strict=True)))

    def _spare_bytes(
        self,
        parts: Sequence[Part],
        loads: Sequence["_Load"],
        crossing: Crossing,
        in_flight: Sequence[int],
    ) -> tuple[float, ...]:
        capacity = smallest_memory_bytes(self.problem)
        received = [0.0] * len(parts)
        for (_, target), count in crossing.items():
            received[target] += count
        versions = self._versions(parts, in_flight)
        return tuple(
            capacity - load.memory.total(held / part.degree, count) - (kept - 1) * load.weights
            for part, load, held, count, kept in zip(parts, loads, in_flight, received, versions, strict=True)
        )

    def _versions(self, parts: Sequence[Part], in_flight: Sequence[int]) -> list[int]:
        if self.problem.weights == "flush":
            return [1] * len(parts)
        versions = [self.problem.versions(held, part.micro_batch) for part, held in zip(parts, in_flight, strict=True)]
        return [max(versions)] * len(versions) if self.problem.weights == "vertical-sync" else versions

    def _load(self, part: Part) -> "_Load":
        """Return the summed load of a part's operators, cached because most parts are in many partitions."""
        if (known := self._known.get(part)) is None:
            key = size, degree = part.micro_batch, part.degree
            samples, op_bytes = part.micro_batch / part.degree, self.costs.op_bytes
            if key not in self._op_figures:
                seconds = stage_seconds(self.problem, self.costs, size, degree)
                self._op_figures[key] = seconds, op_bytes.saved_of(samples)
            at, (seconds, saved) = self.costs.positions(part.ops), self._op_figures[key]
            memory = StageMemory.summed(
                self.costs.parameter_bytes.held(part.ops, part.state, part.degree),
                float(saved[at].sum()),
                recompute="full" if part.recompute == "full" else "none",
                samples=samples,
                temporary=float(op_bytes.temporary(samples)[at].max()) if op_bytes.has_temporaries else 0.0,
            )
            if part.degree not in self._updates:
                self._updates[part.degree] = update_seconds_per_byte(self.problem, part.degree)
            update = self._updates[part.degree] * float(op_bytes.trainable[at].sum())
            weights = self.costs.parameter_bytes.gradients(part.ops) if self.problem.weights != "flush" else 0.0
            known = self._known[part] = _Load(float(seconds[at].sum()), update, memory, weights)
        return known


class _Load(NamedTuple):
    seconds: float
    """Seconds per micro-batch, with a share of the update, without transfers."""
    update: float
    """Seconds of the all-reduce and the optimizer step, once per mini-batch."""
    memory: StageMemory[float]
    """Bytes without received tensors, which depend on the other parts, and with one version of the weights."""
    weights: float
    """Bytes of a version, if there may be several."""
