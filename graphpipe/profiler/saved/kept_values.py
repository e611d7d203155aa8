"""What all operators of a model keep, measured one by one."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from graphpipe.costs import OpCost
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.saved.saved_values import (
    KeptValues,
    SavedValues,
    saved_by_op,
    saved_values,
    values_between_halves,
)


def kept_values(run: OpRun, batch_sizes: Sequence[int]) -> KeptValues:
    """Return what an operator keeps.

    Args:
        run: of the operator.
        batch_sizes: numbers of samples to measure at, ascending; those that the operator refuses are left out. What it
            keeps between two halves is measured at the first and the last.
    """
    saved, between = SavedValues(op=run.op), SavedValues(op=run.op)
    forward = run.without_loss or run.call
    for samples in batch_sizes:
        # Batch normalisation refuses one sample. If an operator refuses all sizes, the timing reports it.
        with suppress(RuntimeError, ValueError):
            given = run.enter(samples)[1]
            saved = saved.joined(saved_values(run.op, forward, run.module, run.sends, given, samples))
            if samples in (batch_sizes[0], batch_sizes[-1]):
                between = between.joined(values_between_halves(run, samples))
    return KeptValues(saved=saved, between_halves=between)


def with_kept(rows: Sequence[OpCost], found: Sequence[KeptValues]) -> tuple[OpCost, ...]:
    """Return the rows of all operators with what each keeps."""
    saved = saved_by_op(each.saved for each in found)
    between = saved_by_op(each.between_halves for each in found)
    return tuple(replace(row, saved=saved[row.op], between_halves=between[row.op]) for row in rows)
