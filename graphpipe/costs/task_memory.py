"""The memory that the tasks of a stage hold only while they run."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from graphpipe.costs.activation_bytes import ActivationBytes
from graphpipe.costs.op_bytes import Array, OpBytes
from graphpipe.costs.recompute_regions import Recompute, regions


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """The most bytes that a task needs beyond what is kept of its micro-batch between forward and backward."""

    forward: float = 0.0
    first_backward: float = 0.0
    """Bytes of a mini-batch's first backward, without the parameters' gradients that it allocates."""
    backward: float = 0.0
    """Bytes of later backwards, which add to these gradients."""
    input_half: float = 0.0
    first_weight_half: float = 0.0
    """As `first_backward`."""
    weight_half: float = 0.0

    def of_task(self, kind: Literal["F", "B", "I", "W"], *, first: bool) -> float:
        """Return the bytes of a task.

        Args:
            kind: of the task.
            first: whether the mini-batch has no gradients of the parameters yet.
        """
        if kind == "B":
            return self.first_backward if first else self.backward
        if kind == "W":
            return self.first_weight_half if first else self.weight_half
        return self.forward if kind == "F" else self.input_half

    @staticmethod
    def of(
        op_bytes: OpBytes,
        ops: Collection[str],
        samples: float,
        recompute: Recompute = "none",
        offload: tuple[str, ...] = (),
    ) -> "TaskMemory":
        """Return the memory of the tasks of a stage; 0 if the cost table does not record temporaries.

        Everything kept of a micro-batch counts as held from the start of its forward to the end of its backward, and
        what the largest region saves during the whole backward (see `StageMemory`). An operator's temporaries are added
        to it, less what is not allocated yet or already freed:

            forward    a > b > [c]   d      temporaries of c, less what d will keep
            backward   a   b   [c] < d      temporaries of c and the gradient from d, less what d had kept

        A backward holds what a region saves only from the time when it computes the region again. Each operator of the
        region then frees its part. So a backward may need less than what counts as held, and be negative here.

        The first half of a split backward frees what does not stay between the halves, and leaves gradients to the
        second half (`OpBytes.between_halves_of`), which frees both. An operator that does not lead back to a received
        value runs its whole backward in the second half. Under a table that says the share which stays, a half counts
        as a backward.

        Args:
            each: bytes of every operator.
            ops: of the stage.
            samples: of one micro-batch on one device.
            recompute: what the stage recomputes.
            offload: what the stage offloads.
        """
        if not op_bytes.has_temporaries:
            return TaskMemory()
        inside, graph = frozenset(ops), op_bytes.graph
        activations = ActivationBytes(op_bytes, samples)
        held = _Activations.of(activations, tuple(ops), recompute, offload)
        again = samples * held.largest_region
        forward, first, backward = 0.0, -again, -again
        freed = grown = 0.0  # bytes that later operators keep, and bytes of their parameters' gradients
        halves, trunk = _HalvesMemory(op_bytes, samples, op_bytes.between_halves_of(samples)), activations.trunk(ops)
        for name in (name for name in reversed(graph.order) if name in inside):
            rows = op_bytes.temporaries[graph.index[name]]
            computed = samples * op_bytes.largest_load[name]
            passing = max((row.forward(computed) for row in rows), default=0.0)
            handed_on = not inside.isdisjoint(graph.successors[name])
            arrived = (
                op_bytes.returned_gradient[name] * samples if handed_on else 0.0
            )  # otherwise it is in a message buffer
            returning = max((row.backward(computed) for row in rows), default=0.0) + arrived
            repeated = samples * held.repeated[name] - again
            returning = max(returning, arrived + passing if held.repeated[name] else 0.0) + repeated
            forward = max(forward, passing - freed + samples * held.dropped[name])
            first = max(first, returning - freed + grown)
            backward = max(backward, returning - freed)
            if name in trunk:
                halves.add(name, held.kept[name], arrived, grown)
            else:
                entered = (inside - trunk).isdisjoint(graph.successors[name])  # a gradient that waited for this half
                halves.add_whole(held.kept[name], returning - (arrived if entered else 0.0), grown)
            freed += samples * held.kept[name]
            grown += float(op_bytes.trainable[graph.index[name]])
        if op_bytes.table.kept_for_weight_gradient is not None:
            return TaskMemory(forward, first, backward, backward, first, backward)
        return TaskMemory(forward, first, backward, halves.input_half, halves.first_weight_half, halves.weight_half)


@dataclass(slots=True)
class _HalvesMemory:
    """The same of the two halves of a backward, operator by operator from the last."""

    op_bytes: OpBytes
    samples: float
    between: Array
    """Of every operator of the graph, per sample."""
    input_half: float = 0.0
    first_weight_half: float = 0.0
    weight_half: float = 0.0
    _freed: float = 0.0
    _freed_later: float = 0.0

    def add(self, name: str, kept: float, arrived: float, grown: float) -> None:
        """Add an operator.

        Args:
            name: of the operator.
            kept: what its backward finds, per sample.
            arrived: bytes of the gradient that arrives.
            grown: bytes of the gradients of later operators' parameters.
        """
        at, computed = self.op_bytes.graph.index[name], self.samples * self.op_bytes.largest_load[name]
        rows = self.op_bytes.temporaries[at]
        curves = [row.halves for row in rows]
        stay = max((row.held_gradients(computed) for row in rows if row.held_gradients), default=0.0)
        first, second = (max((each[half](computed) for each in curves), default=0.0) for half in range(2))
        between = float(self.between[at])
        self.input_half = max(self.input_half, first + arrived - self._freed)
        self.first_weight_half = max(self.first_weight_half, second - self._freed_later + grown)
        self.weight_half = max(self.weight_half, second - self._freed_later)
        self._freed += self.samples * (kept - between) - stay
        self._freed_later += self.samples * between

    def add_whole(self, kept: float, returning: float, grown: float) -> None:
        """Add an operator whose whole backward runs in the second half.

        Args:
            kept: what its backward finds, per sample.
            returning: bytes that its backward holds, with the gradient that arrives if it did not wait.
            grown: bytes of the gradients of later operators' parameters.
        """
        self.first_weight_half = max(self.first_weight_half, returning - self._freed_later + grown)
        self.weight_half = max(self.weight_half, returning - self._freed_later)
        self._freed_later += self.samples * kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activations:
    """Bytes per sample, by operator of a stage.

    region of b and c       a   [b   c]   d
    backward of d           the kept bytes of all
    backward of c           those of a, b and c, and what b and c save, which is computed again
    backward of b           those of a and b, and what b saves
    """

    kept: Mapping[str, float]
    """Bytes that the operator's backward finds and frees. What was offloaded has been fetched."""
    repeated: Mapping[str, float]
    """Bytes that the operator's region holds at that time besides: what it and earlier operators of the region save."""
    dropped: Mapping[str, float]
    """Bytes that the forward of a recomputed operator saves and does not keep."""
    largest_region: float
    """The most bytes that a region saves."""

    @staticmethod
    def of(
        activations: ActivationBytes, ops: tuple[str, ...], recompute: Recompute, offload: tuple[str, ...]
    ) -> "_Activations":
        """Return the activations of a stage. A stage that recomputes in full holds in its backward what others keep."""
        op_bytes = activations.op_bytes
        saved = dict(zip(ops, op_bytes.saved_of(activations.samples)[op_bytes.positions(ops)].tolist(), strict=True))
        nothing = dict.fromkeys(ops, 0.0)
        if isinstance(recompute, str):
            return _Activations(kept=saved, repeated=nothing, dropped=nothing, largest_region=0.0)
        kept = activations.kept_by_op(ops, recompute, offload)
        again = {name: number for number, region in enumerate(regions(ops, recompute)) for name in region}
        return _Activations(
            kept={name: kept[name] if name in again else max(kept[name], saved[name]) for name in ops},
            repeated=nothing | _so_far((name for name in op_bytes.graph.order if name in again), again, saved),
            dropped={name: max(0.0, saved[name] - kept[name]) if name in again else 0.0 for name in ops},
            largest_region=activations.recomputed(ops, recompute),
        )


def _so_far(names: Iterable[str], region: Mapping[str, int], saved: Mapping[str, float]) -> dict[str, float]:
    totals, totals_by_op = dict.fromkeys(region.values(), 0.0), dict[str, float]()
    for name in names:
        totals[region[name]] += saved[name]
        totals_by_op[name] = totals[region[name]]
    return totals_by_op
