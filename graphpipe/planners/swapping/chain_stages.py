"""The stages of a chain of equal degrees, priced: the seconds of each, with what it has to swap and recompute."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.problem.partition import Part
from graphpipe.planners.problem.stage_costs import degrees_of, far_bandwidth, smallest_memory_bytes, stage_seconds
from graphpipe.planners.swapping.swap_or_recompute import SwapOrRecompute
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.sharding import rounded_up
from graphpipe.plans.stage import Stage

Array = NDArray[np.float64]


class Price(NamedTuple):
    """The price of a stage, or of the worst of several; a smaller one is better."""

    short_bytes: float
    """Bytes that the stage lacks, even if it recomputes everything; 0 if it fits."""
    seconds: float
    """Seconds per micro-batch: computing, transfers and copies beyond what they overlap, recomputation, the update."""


class PricedStage(NamedTuple):
    """A stage with its decisions about memory."""

    part: Part
    price: Price


FREE = Price(0.0, 0.0)


# No slots: sums over operators are cached.
@dataclass(frozen=True, kw_only=True)
class ChainStages:
    """The operators of a chain in order, for one micro-batch size, one degree and one number of stages."""

    table: DownsetTable
    micro_batch: int
    degree: int
    count: int
    """Number of stages."""
    _known: dict[tuple[int, int, int], PricedStage] = field(default_factory=dict[tuple[int, int, int], PricedStage])

    @staticmethod
    def all_of(table: DownsetTable, micro_batch: int) -> "Iterator[ChainStages]":
        """Yield the chains of every degree that divides a micro-batch. They use as many devices as they can."""
        for degree in degrees_of(table.problem, micro_batch):
            count = min(table.devices // degree, len(table.graph.ops))
            yield ChainStages(table=table, micro_batch=micro_batch, degree=degree, count=count)

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Samples in flight of every stage under 1F1B: those of count - x micro-batches at stage x, counted from 0."""
        after = [[stage + 1] for stage in range(self.count - 1)]
        samples = self.table.problem.in_flight([self.micro_batch] * self.count, [1] * self.count, [*after, []])
        whole = rounded_up(self.table.problem.batch_size, self.micro_batch)
        return (whole,) * self.count if self.table.before_tail else samples

    @cached_property
    def computed(self) -> Array:
        """[operators + 1]: seconds per micro-batch of the operators before each one, with their share of the update."""
        table = self.table
        seconds = stage_seconds(table.problem, table.costs, self.micro_batch, self.degree)
        return np.concatenate(([0.0], np.cumsum(seconds[self._at])))

    @property
    def least_seconds(self) -> float:
        """Seconds below which no step is: one micro-batch passes all stages and comes back, the slowest does the rest.

        Weight gradients are not counted on the way, because a schedule may do them later.
        """
        problem, costs = self.table.problem, self.table.costs
        tasks = [costs.seconds(kind, self.micro_batch / self.degree) for kind in problem.cluster.types]
        passing = min(float((forward + back)[self._at].sum()) for forward, back, _ in tasks)
        slowest = float(self.computed[-1]) / self.count
        return (problem.batch_size / self.micro_batch - 1) * slowest + max(slowest, passing)

    @cached_property
    def state(self) -> Array:
        """[operators + 1]: bytes of parameters, gradients and optimizer state of the operators before each one."""
        held = self.table.costs.op_bytes.held(self.table.problem.state, self.degree)
        return np.concatenate(([0.0], np.cumsum(held[self._at])))

    @cached_property
    def least_state(self) -> Array:
        """[operators + 1]: the same, with parameters that several operators share counted once."""
        table = self.table
        op_bytes = table.costs.op_bytes
        least = op_bytes.least_state if table.problem.state == "whole" else op_bytes.least_held(self.degree)
        return np.concatenate(([0.0], np.cumsum(least[self._at])))

    def may_fit(self, first: int, last: int, count: int) -> bool:
        """Return whether the state of the operators from `first` up to `last` fits in the memory of so many stages."""
        return float(self.least_state[last] - self.least_state[first]) <= count * self._capacity

    @cached_property
    def _capacity(self) -> float:
        return smallest_memory_bytes(self.table.problem)

    @cached_property
    def saved(self) -> Array:
        """[operators + 1]: bytes per sample that the operators before each one save."""
        op_bytes = self.table.costs.op_bytes
        return np.concatenate(([0.0], np.cumsum(op_bytes.saved_of(self.micro_batch / self.degree)[self._at])))

    @cached_property
    def _at(self) -> NDArray[np.intp]:
        return self.table.costs.positions(self.table.graph.order)

    @cached_property
    def _transfers(self) -> Array:
        """[operators + 1]: seconds per micro-batch of activations and gradients over the cut before each operator."""
        suffixes = self.table.cut_bytes[::-1]
        return 2 * suffixes * self.micro_batch / self.degree / far_bandwidth(self.table.problem)

    @cached_property
    def _relief(self) -> SwapOrRecompute:
        return SwapOrRecompute.of(self.table.problem, self.table.costs, self.micro_batch / self.degree)

    def priced(self, first: int, last: int, position: int) -> PricedStage:
        """Return the stage of the operators from `first` up to `last`, at a position of the chain counted from 0."""
        key = first, last, position
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._priced(first, last, position)
        return known

    def _priced(self, first: int, last: int, position: int) -> PricedStage:
        problem, capacity = self.table.problem, self._capacity
        seconds = float(self.computed[last] - self.computed[first])
        held = self.in_flight[position]
        stage = Stage(
            name="stage",
            ops=tuple(self.table.graph.order[first:last]),
            devices=tuple(range(self.degree)),
            micro_batch=self.micro_batch,
            in_flight=held,
            state=problem.state if self.degree > 1 else "whole",
            versions=int(problem.versions(held, self.micro_batch)),
        )
        if self._bytes(stage) > capacity:
            stage = self._relief.fitted(stage, capacity, window_seconds=seconds)
        short = max(0.0, self._bytes(stage) - capacity)
        added = self._relief.added_seconds(stage, window_seconds=seconds)
        transfers = float(max(self._transfers[first], self._transfers[last]))
        part = replace(Part.of(stage), degree=self.degree)
        return PricedStage(part, Price(short, max(seconds + added, transfers)))

    def _bytes(self, stage: Stage) -> float:
        return float(stage_memory(self.table.costs, stage).total(stage.in_flight / stage.degree))

    def all_priced(self, cuts: Sequence[int]) -> list[PricedStage]:
        """Return the stages between cuts, the first of which is 0 and the last the number of operators."""
        return [self.priced(start, stop, at) for at, (start, stop) in enumerate(pairwise(cuts))]


FindChain = Callable[[ChainStages], Sequence[PricedStage] | None]
"""A search for the stages of a chain; None if nothing fits."""


def partitions_of(
    find: FindChain,
    table: DownsetTable,
    micro_batch: int,
    *,
    most_seconds: float = inf,
) -> Iterator[list[Part]]:
    """Yield the partition that a search finds for every degree that divides a micro-batch.

    Args:
        find: the search.
        table: of the operators to cut.
        micro_batch: samples.
        most_seconds: of a step; chains that take longer even if all stages compute equally long are left out.
    """
    for stages in ChainStages.all_of(table, micro_batch):
        if stages.least_seconds < most_seconds and (partition := find(stages)) is not None:
            yield [stage.part for stage in partition]


def worst(prices: Sequence[Price]) -> Price:
    """Return the price of several stages: that of a pipeline is set by its worst stage."""
    return Price(max(price.short_bytes for price in prices), max(price.seconds for price in prices))
