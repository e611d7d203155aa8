"""What a rank of a pipeline holds from step to step: what a checkpoint is made of."""

from dataclasses import dataclass

from torch import nn

from graphpipe.model.program import StageProgram
from graphpipe.plan import Plan
from graphpipe.run.replica import StageReplica
from graphpipe.run.update import Update
from graphpipe.run.worker import Worker
from graphpipe.run.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The parts of a pipeline on one rank, themselves and not copies."""

    world: World
    plan: Plan
    seed: int
    model: nn.Module | None
    """The user's module; None where the pipeline was given stage programs."""
    programs: tuple[StageProgram, ...]
    """Of all stages, hosted here or not: those of the other ranks tell names and shapes, not current values."""
    worker: Worker[StageReplica]
    update: Update
