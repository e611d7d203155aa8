"""The loads of the samples of one mini-batch, given or drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.balance.balanced_order import balanced_order
from graphpipe.balance.blocks import Blocks
from graphpipe.errors import InvalidInput, nearest
from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange

DRAWN_STEPS = 16
"""Steps that a prediction draws. Their mean is then known to a quarter of the spread of single steps."""


@dataclass(frozen=True, slots=True)
class StepLoads:
    """The loads of every sample of a mini-batch, as running sums, in the order of the cost table's loads."""

    sums: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(plan: Plan, loads: Mapping[str, Sequence[float]]) -> "StepLoads":
        """Return the loads of a mini-batch.

        Args:
            plan: whose costs declare the loads. If it balances mini-batches, the samples are put into that order.
            loads: by the declared name, one number per sample of the mini-batch.

        Raises:
            InvalidInput: a name is unknown or missing, a list has another length than the mini-batch, or a load is
                negative or larger than the largest declared one, which memory was planned for.
        """
        declared = {load.name: load for load in plan.costs.loads}
        for name in loads:
            if name not in declared:
                raise InvalidInput(
                    f"the plan does not declare '{name}'", where="loads", remedy=nearest(name, [*declared])
                )
        for name, load in declared.items():
            given = loads.get(name, ())
            if len(given) != plan.batch_size:
                what = f"has {len(given)} numbers for '{name}', but the mini-batch has {plan.batch_size} samples"
                raise InvalidInput(what, where="loads")
            for number in given:
                if not 0 <= number <= load.largest:
                    what = f"'{name}' is {number} for a sample, but was declared as 0 to {load.largest:g}"
                    raise InvalidInput(what, where="loads", remedy="Plan with the loads that occur.")
        table = np.array([loads[name] for name in declared], dtype=np.float64)
        even = [load.balanced for load in declared.values()]
        if any(even):
            table = table[:, balanced_order(table[even].T, Blocks.of(plan))]
        return StepLoads(tuple(_running_sums(row) for row in table))

    def within(self, rows: SampleRange) -> tuple[float, ...]:
        """Return the sum of each load over some samples."""
        return tuple(sums[rows.stop] - sums[rows.start] for sums in self.sums)


def draw_loads(plan: Plan, step: int) -> dict[str, tuple[float, ...]]:
    """Return random loads of a mini-batch, drawn from the shares that the plan's costs declare.

    Samples are independent, and so are several loads of a sample. The same step always gets the same loads.
    """
    random = np.random.default_rng(step)
    loads: dict[str, tuple[float, ...]] = {}
    for load in plan.costs.loads:
        drawn = random.choice(np.array(load.loads), size=plan.batch_size, p=np.array(load.shares))
        loads[load.name] = tuple(drawn.tolist())
    return loads


def _running_sums(loads: NDArray[np.float64]) -> tuple[float, ...]:
    return (0.0, *np.cumsum(loads).tolist())
