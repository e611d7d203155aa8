"""The operators of a stage, and what each decision about them keeps, offloads and takes (`relief`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.planners.relief.choices import KEEP, OFFLOAD, RECOMPUTE, Array, Choices, Decisions
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


@dataclass(frozen=True, slots=True)
class _Reading:
    # A value that operators of the stage, or of other stages, read.
    bytes: float
    readers: tuple[int, ...]
    """Positions of the readers in the stage."""
    leaves: bool
    """Whether another stage reads the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOps:
    """The operators of a stage by position, in topological order."""

    samples: float
    """Samples of a micro-batch on one device."""
    in_flight: float
    window_seconds: float
    """Seconds of a micro-batch's copies that cost no time."""
    copy_seconds: float
    """Seconds to copy a byte to where it is offloaded, or back."""
    limited: bool
    """Whether there is only so much room for what is offloaded, so that it is counted."""
    forward: list[float]
    """Seconds that a recomputation takes."""
    saved: list[float]
    """Bytes that operators save per sample, as `OpBytes.saved_of` counts them."""
    outputs: list[float]
    """Bytes that operators save per sample, without what each forward keeps once, which no other operator reads."""
    ways: list[tuple[int, ...]]
    """The decisions that may pay, ascending."""
    values: list[list[_Reading]]
    open: list[list[int]]
    """The operators so far of which a reader is not decided yet, after each operator."""
    closed: list[list[int]]
    """The operators whose last reader, or which itself, each operator is."""

    @staticmethod
    def of(
        plan: Plan, stage: Stage, order: Sequence[str], window_seconds: float, *, offloads: bool, limited: bool
    ) -> "StageOps":
        """Return the operators of a stage.

        Args:
            plan: of which the stage is.
            stage: without decisions.
            order: its operators.
            window_seconds: copies of a micro-batch take no time as far as they fit into this.
            offloads: whether operators may be offloaded.
            limited: whether there is only so much room for what is offloaded.
        """
        model, samples = plan.cost_model, stage.micro_batch / stage.degree
        at = model.positions(order)
        kinds = {plan.cluster.devices[device].type for device in stage.devices}
        forward = max((model.seconds(kind, samples)[0][at] for kind in kinds), key=lambda seconds: float(seconds.sum()))
        pairs = zip(order, forward.tolist(), strict=True)
        values = _values(plan, {name: place for place, name in enumerate(order)})
        readers = [[reader for value in own for reader in value.readers] for own in values]
        last = [max([place, *own]) for place, own in enumerate(readers)]
        saved = model.op_bytes.saved_of(samples)[at].tolist()
        return StageOps(
            samples=samples,
            in_flight=stage.in_flight / stage.degree,
            window_seconds=window_seconds,
            copy_seconds=copy_seconds(plan, stage),
            limited=limited,
            forward=[seconds if name in plan.graph.differentiable else 0.0 for name, seconds in pairs],
            saved=saved,
            outputs=model.op_bytes.saved[at].tolist(),
            ways=[_ways(saved, readers, place, offloads=offloads) for place in range(len(order))],
            values=values,
            open=[[op for op in range(place + 1) if last[op] > place] for place in range(len(order))],
            closed=[[op for op in range(place + 1) if last[op] == place] for place in range(len(order))],
        )

    def grown(self, choices: Choices, number: int) -> Choices:
        """Return the choices with each decision of the next operator. What it reads last is counted then."""
        ways = np.array(self.ways[number], np.int8)
        every = np.repeat(np.arange(len(choices)), len(ways))
        decisions = choices.decisions[every]
        decisions[:, number] = np.tile(ways, len(choices))
        again = decisions[:, number] == RECOMPUTE
        bytes_, moved = choices.bytes[every], np.zeros(len(every))
        for op in self.closed[number]:
            kept = self._kept(op, decisions)
            offloaded = np.where(decisions[:, op] == OFFLOAD, np.maximum(0.0, self.saved[op] - kept), 0.0)
            bytes_ += kept * self.in_flight + offloaded * min(self.in_flight, MOVING_MICRO_BATCHES * self.samples)
            moved += offloaded * self.samples
        copied = choices.copied[every] + 2 * self.copy_seconds * moved
        beyond = choices.seconds[every] + np.maximum(0.0, copied - self.window_seconds)
        return Choices(
            decisions=decisions,
            seconds=np.where(again, self.forward[number], 0.0) + beyond,
            bytes=bytes_,
            copied=np.minimum(copied, self.window_seconds),
            region=np.maximum(choices.region[every], np.where(again, self.saved[number] * self.samples, 0.0)),
            offloaded=choices.offloaded[every] + (moved * self.in_flight / self.samples if self.limited else 0.0),
        )

    def _kept(self, op: int, decisions: Decisions) -> Array:
        """Return, of shape [choices], what an operator keeps per sample, as `ActivationBytes.saved` counts it."""
        own, reads, needs = decisions[:, op], np.zeros(len(decisions)), np.zeros(len(decisions))
        for value in self.values[op]:
            others = decisions[:, value.readers]
            needed = (others == RECOMPUTE).any(axis=1)
            if value.leaves:
                needed |= own != KEEP
            elsewhere = (others == KEEP).any(axis=1) | ((others == OFFLOAD).any(axis=1) & (own != OFFLOAD))
            reads += np.where(needed | elsewhere, value.bytes, 0.0)
            needs += np.where(needed, value.bytes, 0.0)
        held = np.where(own == KEEP, self.saved[op], 0.0)
        return np.maximum(np.maximum(held, needs), np.minimum(self.outputs[op], reads))


def copy_seconds(plan: Plan, stage: Stage) -> float:
    """Return the seconds in which the slowest device of a stage copies a byte to where it is offloaded, or back."""
    if stage.offload_to:
        pairs = zip(stage.devices, stage.offload_to, strict=True)
        return max(plan.cluster.seconds_per_byte(device, neighbour) for device, neighbour in pairs)
    return max(plan.cost_model.copy_seconds(1.0, device) for device in stage.devices)


def _ways(saved: Sequence[float], readers: Sequence[Sequence[int]], op: int, *, offloads: bool) -> tuple[int, ...]:
    # An operator that saves nothing may have to be offloaded with those that it reads, or they stay for it.
    reads = any(op in read and count for read, count in zip(readers, saved, strict=True))
    offload = (OFFLOAD,) if offloads and (saved[op] or reads) else ()
    return (KEEP, *offload, *((RECOMPUTE,) if saved[op] else ()))


def _values(plan: Plan, place: dict[str, int]) -> list[list[_Reading]]:
    readings: dict[str, dict[tuple[str, str], _Reading]] = {name: {} for name in place}
    for source, target, value, count in plan.graph.reads:
        if source in place:
            known = readings[source].get(value, _Reading(0.0, (), False))
            readers = (*known.readers, place[target]) if target in place else known.readers
            leaves = known.leaves or target not in place
            readings[source][value] = _Reading(max(known.bytes, count), readers, leaves)
    return [[*by_value.values()] for by_value in readings.values()]
