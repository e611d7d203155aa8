"""What a search sweeps: micro-batch sizes under a least data-parallel degree, and the loads of operators there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.search.coarsen import Runs
from graphpipe.planners.search.relative_loads import Loads

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
_LEAST_LOAD = 1e-12  # seconds: an operator that takes no time still belongs to a stage


def micro_batch_sizes(batch_size: int) -> list[int]:
    """Return the micro-batch sizes worth trying: divisors of the mini-batch, at least a factor of 1.5 apart.

    They are the powers of two when the mini-batch is one.
    """
    found: list[int] = []
    for divisor in range(1, batch_size + 1):
        if batch_size % divisor == 0 and (not found or divisor >= 1.5 * found[-1]):
            found.append(divisor)
    return found


@dataclass(frozen=True, slots=True)
class SettingTable:
    """The loads of every operator for some micro-batch sizes, when stages have whole multiples of `unit` devices.

    A larger unit makes shallower pipelines, and a smaller search: devices are counted in units. A cluster of unequal
    devices is searched as if every device were its slowest and smallest one: what fits there fits everywhere.
    """

    problem: Problem
    costs: CostModel
    unit: int
    sizes: NDArray[np.int64]
    """[settings]: micro-batch sizes."""
    seconds: Array
    """[operators, settings, degrees]: see `Loads`."""
    cut_seconds_per_byte: Array
    """[settings, degrees]."""

    @staticmethod
    def of(problem: Problem, costs: CostModel, unit: int, sizes: list[int], ops: frozenset[str]) -> "SettingTable":
        """Fill the table for the sizes that split over a unit.

        Args:
            problem: graph, costs, cluster and batch.
            costs: the look-up of the same.
            unit: least data-parallel degree, a power of two up to the number of devices.
            sizes: micro-batch sizes.
            ops: operators to place; others (the whole-batch tail) take nothing.
        """
        sizes = [size for size in sizes if size % unit == 0]
        degrees = _degrees(problem, unit)
        seconds = np.full((len(problem.graph.ops), len(sizes), len(degrees)), np.inf)
        for at, size in enumerate(sizes):
            for k, degree in enumerate(degrees):
                if size % degree == 0:
                    seconds[:, at, k] = stage_seconds(problem, costs, size, degree)
        outside = [position for position, op in enumerate(problem.graph.ops) if op.name not in ops]
        seconds[outside] = 0.0
        cut = np.array(sizes, dtype=float)[:, None] / np.array(degrees) / far_bandwidth(problem)
        return SettingTable(problem, costs, unit, np.array(sizes, dtype=np.int64), seconds, cut)

    @property
    def units(self) -> int:
        """How many units the cluster's devices make."""
        return len(self.problem.cluster.devices) // self.unit

    def only(self, chosen: Indices) -> "SettingTable":
        """Return the table of some settings."""
        cut = self.cut_seconds_per_byte[chosen]
        return SettingTable(self.problem, self.costs, self.unit, self.sizes[chosen], self.seconds[:, chosen], cut)

    def loads(self, targets: Array, in_flight: Array | None, runs: Runs | None = None) -> Loads:
        """Return the loads of all settings.

        Args:
            targets: seconds per sample that a stage may take, of shape [settings, targets].
            in_flight: assumed samples in flight of each operator's stage, [operators, settings]; None leaves memory
                out.
            runs: operators that stand for several.
        """
        degrees = _degrees(self.problem, self.unit)
        # A stage that recomputes holds what its operators save of one micro-batch. What is received is left out here.
        once = in_flight is not None and self.problem.recompute == "full"
        held = self.sizes[None].astype(np.float64) if once else in_flight
        memory = None if held is None else _memory_shares(self.problem, self.costs, held, degrees)
        seconds = self._merged(self.seconds, runs or {})
        memory = None if memory is None else self._merged(memory, runs or {})
        return Loads(
            index=self.problem.graph.index,
            seconds=seconds,
            targets=targets * self.sizes[:, None],
            memory=memory,
            classes=_classes(seconds, memory),
            cut_seconds_per_byte=self.cut_seconds_per_byte,
            overlap=self.problem.cluster.overlap,
        )

    def _merged(self, loads: Array, runs: Runs) -> Array:
        """Return loads of operators, of which those that stand for several have the loads of all."""
        several = {name: ops for name, ops in runs.items() if len(ops) > 1}
        if not several:
            return loads
        merged = loads.copy()
        for name, ops in several.items():
            merged[self.problem.graph.index[name]] = loads[self.costs.positions(ops)].sum(axis=0)
        return merged


def _degrees(problem: Problem, unit: int) -> list[int]:
    # One stage on all devices is a matter for the largest unit alone.
    devices = len(problem.cluster.devices)
    degrees = [unit * 2**k for k in range((devices // unit).bit_length())]
    return [degree for degree in degrees if degree < devices or degree == unit]


def shares(problem: Problem, costs: CostModel) -> dict[str, float]:
    """Return the share of every operator in the work, or in state or activations where that is more."""
    work = stage_seconds(problem, costs, problem.batch_size, 1)
    measures = (work, costs.state_bytes_by_op, costs.saved_bytes)
    found = np.max([measure / max(float(measure.sum()), _LEAST_LOAD) for measure in measures], axis=0)
    return dict(zip((op.name for op in problem.graph.ops), found.tolist(), strict=True))


def stage_seconds(
    problem: Problem, costs: CostModel, micro_batch: int, degree: int, types: Sequence[str] | None = None
) -> Array:
    """Return seconds per micro-batch that each operator adds to a stage: forward, backward, its share of the update.

    Forward twice if the problem has stages recompute. On the slowest of some device types; None: of all in the cluster.
    """
    types = types or sorted({device.type for device in problem.cluster.devices})
    each = [costs.seconds(kind, micro_batch / degree) for kind in types]
    again = [(seconds[0], *seconds) for seconds in each] if problem.recompute == "full" else each
    compute = np.max([np.sum(seconds, axis=0) for seconds in again], axis=0)
    devices = tuple(range(min(degree, len(problem.cluster.devices))))
    link = problem.cluster.slowest_link(devices)
    update_per_byte = problem.costs.optimizer_seconds_per_parameter_byte
    if link is not None:  # a ring all-reduce of the gradients comes before the optimizer's step
        update_per_byte += 2 * (degree - 1) / degree / link.bandwidth_bytes_per_second
    update = costs.trainable_bytes * update_per_byte * micro_batch / problem.batch_size
    return np.maximum(compute + update, _LEAST_LOAD)


def smallest_memory_bytes(problem: Problem) -> float:
    """Memory of the smallest device."""
    kinds = {device.type for device in problem.cluster.devices}
    return min(problem.cluster.types[kind].memory_bytes for kind in kinds)


def far_bandwidth(problem: Problem) -> float:
    """Bandwidth of the slowest level that neighbouring stages may have between them."""
    nodes = {device.node for device in problem.cluster.devices}
    cluster = problem.cluster
    return (cluster.inter_node if len(nodes) > 1 else cluster.intra_node).bandwidth_bytes_per_second


def _memory_shares(problem: Problem, costs: CostModel, in_flight: Array, degrees: list[int]) -> Array:
    """Return, of shape [operators, settings, degrees], the share of the smallest device each operator takes."""
    capacity = smallest_memory_bytes(problem)
    saved = costs.saved_bytes[:, None, None] * in_flight[:, :, None] / np.array(degrees, dtype=float)
    return (costs.state_bytes_by_op[:, None, None] + saved) / capacity


def _classes(seconds: Array, memory: Array | None) -> tuple[int, ...]:
    rows = seconds if memory is None else np.concatenate((seconds, memory), axis=2)
    known: dict[bytes, int] = {}
    return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)
