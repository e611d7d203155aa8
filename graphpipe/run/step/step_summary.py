"""Sums up a step over all ranks: the loss, whether everything was finite, and the norms of the gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from graphpipe.errors import NonFiniteLoss
from graphpipe.model.torch_private import flat_vector, norms
from graphpipe.plans import Plan
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.weights.sharded_tensors import local_parts

_FEW = 2**18
"""Up to this many elements, one norm of all gradients in one vector is faster than one norm per gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """The results of one step, the same on every rank."""

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


def summary_length(plan: Plan, output_stage: int) -> int:
    """Return how many numbers a summary consists of."""
    degrees = [stage.degree for stage in plan.stages]
    return degrees[output_stage] + 2 * sum(degrees)


def summarise_step(
    numbers: ScalarSum, plan: Plan, replicas: Sequence[StageReplica], output_stage: int, *, with_norms: bool = False
) -> StepSummary:
    """Sum up the step over all ranks; every rank must call this.

    Every number has its own position in one vector, and only one rank contributes to a position. So the sum over ranks
    is exact, and the losses are added in replica order wherever the replicas run.
    """
    degrees = [stage.degree for stage in plan.stages]
    degree, replicas_in_all = degrees[output_stage], sum(degrees)
    first_place = [degree + sum(degrees[:stage]) for stage in range(len(degrees))]
    given = [0.0] * summary_length(plan, output_stage)
    for replica in replicas:
        slot = replica.slot
        place = first_place[slot.stage] + slot.replica
        loss, given[replicas_in_all + place] = _loss_and_first_bad(replica)
        if slot.stage == output_stage:
            given[slot.replica] = loss
        if with_norms:
            given[place] = total_norm(_counted(plan, replica)) ** 2
    sums = numbers.add_up(given)
    rest = iter(sums[degree:])
    squared_norms = [sum(islice(rest, replicas)) for replicas in degrees]
    firsts = [min(islice(rest, replicas)) for replicas in degrees]
    return StepSummary(
        loss=sum(sums[:degree]),
        first_bad=tuple(int(first) if math.isfinite(first) else None for first in firsts),
        squared_norms=tuple(squared_norms),
    )


def _counted(plan: Plan, replica: StageReplica) -> list[Tensor]:
    # Every gradient, or shard of one, counts once: a shard where it is, a whole gradient on replica 0. Tied parameters
    # count with the first stage that has them.
    stage = replica.slot.stage
    elsewhere = {name for each in plan.tied_gradients if stage in each.stages[1:] for name in each.parameters}
    parameters = replica.parameters
    if elsewhere:
        names = replica.program.parameter_names
        parameters = [each for local, each in replica.module.named_parameters() if names[local] not in elsewhere]
    gradients = [each.grad for each in parameters if each.grad is not None]
    return local_parts(gradients, whole=replica.slot.replica == 0)


def total_norm(gradients: list[Tensor]) -> float:
    """Return the 2-norm of all gradients together; it is not finite if any element is not."""
    if not gradients:
        return 0.0
    # The rows of an index that occurs twice are summed first, as an optimizer does.
    gradients = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    if sum([each.numel() for each in gradients]) <= _FEW:
        return float(torch.linalg.vector_norm(flat_vector(gradients)))
    return float(torch.linalg.vector_norm(torch.stack(norms(gradients))))


def _loss_and_first_bad(replica: StageReplica) -> tuple[float, float]:
    """Return the part of the mini-batch's loss that the replica has computed, and its first bad micro-batch.

    The micro-batch is infinity if all were finite. A GPU is waited for only once.
    """
    losses = [loss for loss, _ in replica.losses]
    seen = [(number, each) for number, sums in replica.sums.items() for each in sums]
    if not (losses or seen):
        return 0.0, math.inf
    values: list[float] = torch.stack([*losses, *(each for _, each in seen)]).tolist()
    loss = sum(value * share for value, (_, share) in zip(values, replica.losses, strict=False))
    sums = zip(seen, values[len(losses) :], strict=True)
    return loss, min((number for (number, _), value in sums if not math.isfinite(value)), default=math.inf)


def check_finite(result: StepSummary, plan: Plan, step: int) -> None:
    """Refuse a step that computed NaN or infinity.

    Args:
        result: of the step.
        plan: that was run.
        step: from 1.

    Raises:
        NonFiniteLoss: names the step, the first stage in topological order with a non-finite output and its first
            such micro-batch; or, if all outputs are finite, the last stage with a non-finite gradient, which
            backwards reach first.
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
    bad_gradients = [name for name, norm in zip(names, result.squared_norms, strict=True) if not math.isfinite(norm)]
    if bad_gradients:
        raise NonFiniteLoss(
            f"the loss is {result.loss:.6g}, but a gradient is not finite, first in this stage",
            where=f"step {step}, stage '{bad_gradients[-1]}'",
            remedy=remedy,
        )
