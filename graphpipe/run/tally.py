"""What all ranks must know at the end of a step: the loss, whether all was finite, and the norms of the gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphpipe.errors import NonFiniteLoss
from graphpipe.plan import Plan
from graphpipe.run.replica import StageReplica
from graphpipe.run.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One step in numbers, the same on every rank."""

    loss: float
    """Mean over the mini-batch."""
    finite: tuple[bool, ...]
    """Per stage: no output was NaN or infinite."""
    squared_norms: tuple[float, ...]
    """Per stage: the squared 2-norm of its gradients; 0 unless asked for."""

    @property
    def gradient_norm(self) -> float:
        """The 2-norm of all gradients, replicas counted once."""
        return math.sqrt(sum(self.squared_norms))


def tally(
    world: World, plan: Plan, replicas: Sequence[StageReplica], output_stage: int, *, with_norms: bool = False
) -> Tally:
    """Add up the step over all ranks; every rank must call this.

    Every number has a place of its own in one vector, to which one rank alone contributes: the sum over ranks is
    exact, and the loss is added up in replica order wherever the replicas run.
    """
    stages, degree = len(plan.stages), plan.stages[output_stage].degree
    places = torch.zeros(degree + 2 * stages, dtype=torch.float64, device=world.device)
    losses, broken, norms = places.split([degree, stages, stages])
    for replica in replicas:
        seat = replica.seat
        if seat.stage == output_stage:
            losses[seat.replica] = replica.loss
        broken[seat.stage] += 1.0 - torch.as_tensor(replica.finite, device=world.device).double()
        if with_norms and seat.replica == 0:
            gradients = _counted(plan, replica)
            norms[seat.stage] = torch.nn.utils.get_total_norm(gradients).double() ** 2 if gradients else 0.0
    world.sum(places)
    numbers: list[float] = places.tolist()
    return Tally(
        loss=sum(numbers[:degree]),
        finite=tuple(count == 0 for count in numbers[degree : degree + stages]),
        squared_norms=tuple(numbers[degree + stages :]),
    )


def _counted(plan: Plan, replica: StageReplica) -> list[Tensor]:
    # What stages share counts with the first of them.
    stage, names = replica.seat.stage, replica.program.parameter_names
    elsewhere = {name for each in plan.exchanges if stage in each.stages[1:] for name in each.parameters}
    named = replica.module.named_parameters()
    return [each.grad for local, each in named if each.grad is not None and names[local] not in elsewhere]


def check_finite(result: Tally, plan: Plan, step: int) -> None:
    """Refuse a step that computed NaN or infinity.

    Raises:
        NonFiniteLoss: names the step and the first stage, in topological order, with a non-finite output.
    """
    if math.isfinite(result.loss):
        return
    guilty = [stage.name for stage, finite in zip(plan.stages, result.finite, strict=True) if not finite]
    where = f"step {step}, stage '{guilty[0]}'" if guilty else f"step {step}"
    raise NonFiniteLoss(
        f"the loss is {result.loss}" + (", and this is the first stage with a non-finite output" if guilty else ""),
        where=where,
        remedy="No weight was changed. Look at this mini-batch, or lower the learning rate.",
    )
