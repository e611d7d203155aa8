"""Memory of operators whose layers run compiled."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import final

import torch

from graphpipe.costs import OpCost, Temporaries
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.profiler.known_costs import KnownCosts
from graphpipe.profiler.op_memory import compiled_temporaries
from graphpipe.profiler.op_runs import OpRun
from graphpipe.profiler.saved.saved_values import SavedValues, saved_by_op, saved_values


@final
@dataclass(frozen=True, slots=True)
class CompiledLayers:
    """Lets the layers of operators run compiled, and measures what they hold."""

    compiler: StageCompiler
    device: torch.device

    def temporaries(self, run: OpRun, batch_sizes: Sequence[int], eager: Temporaries) -> Temporaries:
        """Return the temporaries of an operator with compiled layers; those of the eager one if it does not have any.

        Args:
            run: of the operator.
            batch_sizes: numbers of samples to measure at.
            eager: the temporaries of the eager operator.
        """
        compiled = run.module is not None and self.compiler.install(run.op, run.module)
        return compiled_temporaries(run, batch_sizes, self.device, eager) if compiled else eager

    def saved(self, run: OpRun, batch_sizes: Sequence[int], known: KnownCosts) -> SavedValues:
        """Return what an operator saves without the loss, and let its layers run compiled from now on.

        Args:
            run: of the operator.
            batch_sizes: numbers of samples to measure at; those that the operator refuses are left out.
            known: where it is looked up and noted.
        """
        if run.module is not None:
            self.compiler.install(run.op, run.module)
        if (found := known.saved(run)) is None:
            found, forward = SavedValues(op=run.op), run.without_loss or run.call
            for samples in batch_sizes:
                # Batch normalisation refuses one sample. If an operator refuses all sizes, the timing reports it.
                with suppress(RuntimeError, ValueError):
                    given = run.enter(samples)[1]
                    found = found.joined(saved_values(run.op, forward, run.module, run.sends, given, samples))
            known.note_saved(run, found)
        return found


def with_saved(rows: Sequence[OpCost], saved: Sequence[SavedValues]) -> tuple[OpCost, ...]:
    """Return the rows of all operators with what each keeps for its backward."""
    kept = saved_by_op(saved)
    return tuple(replace(row, saved=kept[row.op]) for row in rows)
