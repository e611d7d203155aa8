"""Memory of operators whose layers run compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from graphpipe.costs import Temporaries
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.profiler.op_memory import compiled_temporaries
from graphpipe.profiler.operators.op_runs import OpRun


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

    def install(self, run: OpRun) -> None:
        """Let the layers of an operator run compiled from now on."""
        if run.module is not None:
            self.compiler.install(run.op, run.module)
