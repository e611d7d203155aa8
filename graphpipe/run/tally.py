"""What all ranks must know at the end of a step: the loss, whether all was finite, and the norms of the gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from graphpipe.errors import NonFiniteLoss
from graphpipe.plan import Plan
from graphpipe.run.replica import StageReplica
from graphpipe.run.shards import is_sharded, own
from graphpipe.run.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One step in numbers, the same on every rank."""

    loss: float
    """Mean over the mini-batch."""
    first_bad: tuple[int | None, ...]
    """Per stage: the first micro-batch with an output that was NaN or infinite."""
    squared_norms: tuple[float, ...]
    """Per stage: the squared 2-norm of its gradients; 0 unless asked for; NaN or infinite if any of them is."""

    @property
    def overflown(self) -> bool:
        """True when some gradient is NaN or infinite and the loss is not."""
        return math.isfinite(self.loss) and not all(map(math.isfinite, self.squared_norms))

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
    degrees = [stage.degree for stage in plan.stages]
    degree = degrees[output_stage]
    places = torch.zeros(degree + 2 * sum(degrees), dtype=torch.float64, device=world.device)
    losses, squares, bad = places.split([degree, sum(degrees), sum(degrees)])
    norms, by_stage = squares.split(degrees), bad.split(degrees)
    for replica in replicas:
        seat = replica.seat
        if seat.stage == output_stage:
            losses[seat.replica] = replica.loss
        by_stage[seat.stage][seat.replica] = _first_bad(replica, world.device)
        if with_norms and (gradients := _answered_for(replica)):
            norms[seat.stage][seat.replica] = torch.nn.utils.get_total_norm(gradients).double() ** 2
    world.sum(places)
    numbers: list[float] = places.tolist()
    rest = iter(numbers[degree:])
    squared_norms = [sum(islice(rest, replicas)) for replicas in degrees]
    firsts = [min(islice(rest, replicas)) for replicas in degrees]
    return Tally(
        loss=sum(numbers[:degree]),
        first_bad=tuple(int(first) if math.isfinite(first) else None for first in firsts),
        squared_norms=tuple(squared_norms),
    )


def _answered_for(replica: StageReplica) -> list[Tensor]:
    # Every gradient, or part of one, on one replica alone: its shards, and on replica 0 what all replicas have.
    gradients = [p.grad for p in replica.program.module.parameters() if p.grad is not None]
    return [own(gradient) for gradient in gradients if is_sharded(gradient) or replica.seat.replica == 0]


def _first_bad(replica: StageReplica, device: torch.device) -> Tensor:
    # Infinity where there is none. Does not wait for a GPU.
    if not replica.finite:
        return torch.full((), math.inf, dtype=torch.float64)
    numbers = torch.tensor(list(replica.finite), dtype=torch.float64, device=device)
    return torch.where(torch.stack(list(replica.finite.values())), math.inf, numbers).min()


def check_finite(result: Tally, plan: Plan, step: int) -> None:
    """Refuse a step that computed NaN or infinity.

    Args:
        result: of the step.
        plan: that was run.
        step: from 1.

    Raises:
        NonFiniteLoss: names the step, the first stage in topological order with a non-finite output and its first
            such micro-batch; or, where all outputs are good, the stage whose gradients were spoilt first: the last.
    """
    remedy = "No weight was changed. Look at this mini-batch, or lower the learning rate."
    names = [stage.name for stage in plan.stages]
    if not math.isfinite(result.loss):
        bad = [(name, first) for name, first in zip(names, result.first_bad, strict=True) if first is not None]
        what = f"the loss is {result.loss}"
        if not bad:
            raise NonFiniteLoss(what, where=f"step {step}", remedy=remedy)
        where = f"step {step}, stage '{bad[0][0]}', micro-batch {bad[0][1]}"
        raise NonFiniteLoss(f"{what}, and this is the first non-finite output", where=where, remedy=remedy)
    spoilt = [name for name, norm in zip(names, result.squared_norms, strict=True) if not math.isfinite(norm)]
    if spoilt:
        raise NonFiniteLoss(
            f"the loss is {result.loss:.6g}, but a gradient is not finite, first in this stage",
            where=f"step {step}, stage '{spoilt[-1]}'",
            remedy=remedy,
        )
