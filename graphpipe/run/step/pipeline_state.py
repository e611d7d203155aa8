"""What a checkpoint saves and restores on one rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.device.precision import LossScale
from graphpipe.run.weights.weight_update import ScheduledOptimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """The training state of one rank. Modules and optimizers are the live objects, not copies."""

    rank: int
    """Number of this rank. Rank 0 also saves what belongs to no stage."""
    steps: int
    """Number of steps done."""
    seed: int
    plan: Plan
    loss_scale: LossScale | None
    """The factor of the loss; None if gradients are not scaled."""
    model: nn.Module | None
    """The user's module; None if the pipeline was built from stage programs."""
    programs: tuple[StageProgram, ...]
    """The programs of all stages. Those of stages on other ranks have the right names and shapes, but not the current
    values."""
    hosted: tuple[int, ...]
    """The stages with a replica on this rank, ascending."""
    saved: tuple[int, ...]
    """The stages that this rank saves: their replica 0, or a part of it, is here."""
    parameter_names: Mapping[int, str]
    """Names, in the user's model, of the parameters that this rank's optimizers change; by `id(parameter)`."""
    optimizers: tuple[ScheduledOptimizer, ...]
    """This rank's optimizers and their learning-rate schedules."""
    saved_plan: Plan
    """The plan that a checkpoint names: with gradients apart that of the user, and not that of the layers."""
    updated: frozenset[str] | None = None
    """Names of the parameters whose optimizer state this rank saves. None: of those that it saves."""
    positions: Mapping[int, int] = field(default_factory=dict[int, int])
    """The position of this rank among those that share a replica, by stage that it hosts."""
