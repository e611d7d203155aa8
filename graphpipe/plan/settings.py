"""The settings a search sweeps: micro-batch sizes and least data-parallel degrees, and the loads under each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.plan.frontier import Loads
from graphpipe.plan.partition import Problem

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
_LEAST_LOAD = 1e-12  # seconds: an operator that takes no time still belongs to a stage


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the sweep; a larger least degree makes shallower pipelines."""

    micro_batch: int
    least_degree: int


def settings_of(batch_size: int, devices: int, micro_batch: int | None = None) -> list[Setting]:
    """Return every setting: micro-batches near powers of two that divide the batch, degrees powers of two.

    Args:
        batch_size: samples of a mini-batch.
        devices: how many there are.
        micro_batch: only this micro-batch, when given.
    """
    sizes = [micro_batch] if micro_batch else _thinned_divisors(batch_size)
    return [
        Setting(size, degree)
        for size in sizes
        for degree in (2**k for k in range(devices.bit_length()))
        if size % degree == 0 and degree <= devices
    ]


def _thinned_divisors(number: int) -> list[int]:
    """Divisors of a number, at least a factor of 1.5 apart: the powers of two when it is one."""
    found: list[int] = []
    for divisor in range(1, number + 1):
        if number % divisor == 0 and (not found or divisor >= 1.5 * found[-1]):
            found.append(divisor)
    return found


@dataclass(frozen=True, slots=True)
class SettingTable:
    """The loads of every operator under every setting of a problem.

    A cluster of unequal devices is searched as if every device were its slowest and smallest one: what fits there
    fits everywhere.
    """

    problem: Problem
    costs: CostModel
    settings: list[Setting]
    seconds: Array
    """[operators, settings, degrees]: see `Loads`."""
    cut_seconds_per_byte: Array
    """[settings, degrees]."""

    @staticmethod
    def of(problem: Problem, costs: CostModel, settings: list[Setting], ops: frozenset[str]) -> "SettingTable":
        """Fill the table for some settings; operators outside `ops` (the whole-batch tail) take nothing."""
        degrees = _degrees(problem)
        seconds = np.full((len(problem.graph.ops), len(settings), len(degrees)), np.inf)
        cut = np.zeros((len(settings), len(degrees)))
        link = _far_link(problem)
        known: dict[tuple[int, int], Array] = {}
        for at, setting in enumerate(settings):
            for k, degree in enumerate(degrees):
                key = (setting.micro_batch, degree)
                if degree >= setting.least_degree and setting.micro_batch % degree == 0:
                    known[key] = known[key] if key in known else stage_seconds(problem, costs, *key)
                    seconds[:, at, k] = known[key]
                cut[at, k] = setting.micro_batch / degree / link
        for position, op in enumerate(problem.graph.ops):
            if op.name not in ops:
                seconds[position] = 0.0
        return SettingTable(problem, costs, settings, seconds, cut)

    def only(self, chosen: Indices) -> "SettingTable":
        """Return the table of some settings."""
        settings = [self.settings[at] for at in chosen]
        return SettingTable(
            self.problem, self.costs, settings, self.seconds[:, chosen], self.cut_seconds_per_byte[chosen]
        )

    @property
    def sizes(self) -> Array:
        """[settings]: micro-batch sizes."""
        return np.array([float(setting.micro_batch) for setting in self.settings])

    def loads(self, chosen: Indices, targets: Array, in_flight: Array | None) -> Loads:
        """Return the loads of some settings.

        Args:
            chosen: positions in `settings`.
            targets: seconds per sample that a stage may take, of shape [chosen, targets].
            in_flight: assumed samples in flight of each operator's stage, [operators, chosen]; None leaves memory out.
        """
        seconds = self.seconds[:, chosen]
        memory = None if in_flight is None else _memory_shares(self.problem, self.costs, in_flight)
        return Loads(
            index=self.problem.graph.index,
            seconds=seconds,
            targets=targets * self.sizes[chosen][:, None],
            memory=memory,
            classes=_classes(seconds, memory),
            cut_seconds_per_byte=self.cut_seconds_per_byte[chosen],
            overlap=self.problem.cluster.overlap,
        )


def _degrees(problem: Problem) -> list[int]:
    return [2**k for k in range(len(problem.cluster.devices).bit_length())]


def stage_seconds(problem: Problem, costs: CostModel, micro_batch: int, degree: int) -> Array:
    """Return seconds per micro-batch that each operator adds to a stage: forward, backward, its share of all-reduce."""
    types = sorted({device.type for device in problem.cluster.devices})
    compute = np.max([np.sum(costs.seconds(kind, micro_batch / degree), axis=0) for kind in types], axis=0)
    devices = tuple(range(min(degree, len(problem.cluster.devices))))
    link = problem.cluster.slowest_link(devices)
    if link is None:
        return np.maximum(compute, _LEAST_LOAD)
    reduced = 2 * (degree - 1) / degree * costs.trainable_bytes / link.bandwidth_bytes_per_second
    return np.maximum(compute + reduced * micro_batch / problem.batch_size, _LEAST_LOAD)


def _far_link(problem: Problem) -> float:
    """Bandwidth of the slowest level that neighbouring stages may have between them."""
    nodes = {device.node for device in problem.cluster.devices}
    cluster = problem.cluster
    return (cluster.inter_node if len(nodes) > 1 else cluster.intra_node).bandwidth_bytes_per_second


def _memory_shares(problem: Problem, costs: CostModel, in_flight: Array) -> Array:
    """Return, of shape [operators, settings, degrees], the share of the smallest device each operator takes."""
    capacity = min(problem.cluster.types[device.type].memory_bytes for device in problem.cluster.devices)
    state = np.array([costs.state_bytes([op.name]) for op in problem.graph.ops])
    saved = costs.saved_bytes[:, None, None] * in_flight[:, :, None] / np.array(_degrees(problem), dtype=float)
    return (state[:, None, None] + saved) / capacity


def _classes(seconds: Array, memory: Array | None) -> tuple[int, ...]:
    rows = seconds if memory is None else np.concatenate((seconds, memory), axis=2)
    known: dict[bytes, int] = {}
    return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)
