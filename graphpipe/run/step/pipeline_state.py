"""What a rank of a pipeline holds from step to step: what a checkpoint is made of."""

from dataclasses import dataclass

from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.comm.world import World
from graphpipe.run.device.loss_scale import LossScale
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.worker import Worker
from graphpipe.run.weights.weight_update import Update


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
    loss_scale: LossScale | None
    """None where gradients are not scaled."""

    def publish(self) -> None:
        """Give the programs of this rank's stages the weights of now; every rank must call this."""
        for engine in self.worker.engines.values():
            engine.publish()

    def adopt(self) -> None:
        """Take over the weights of the programs of this rank's stages."""
        for engine in self.worker.engines.values():
            engine.adopt()
