"""Sums up a step over all ranks: the loss, whether everything was finite, and the norms of the gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from graphpipe.costs.stage_memory import NORM_COPY_BYTES
from graphpipe.errors import NonFiniteLoss
from graphpipe.graph import parameter_of
from graphpipe.model.torch_private import flat_vector, norms
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.tensor.tensor_slices import counted
from graphpipe.run.weights.sharded_tensors import local_parts

_FEW = NORM_COPY_BYTES // 4
"""The same in elements of fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """The results of one step, the same on every rank."""

    loss: float
    """The mean loss over the mini-batch."""
    first_bad: tuple[int | None, ...]
    """The first micro-batch with an output that was NaN or infinite, by stage; None where all were finite."""
    squared_norms: tuple[float, ...]
    """The squared 2-norm of the gradients of each stage; 0 unless asked for; NaN or infinite if any of them is."""
    loss_weight: float = 0.0
    """The sum of the weights that the loss function returned with sums. 0 if it returned means."""

    @property
    def overflown(self) -> bool:
        """True when some gradient is NaN or infinite and the loss is not."""
        return math.isfinite(self.loss) and not all(map(math.isfinite, self.squared_norms))

    def times(self, factor: float) -> "StepSummary":
        """Return the results for a loss that is multiplied by a factor."""
        squared = tuple(norm * factor**2 for norm in self.squared_norms)
        return replace(self, loss=self.loss * factor, squared_norms=squared)

    @property
    def gradient_norm(self) -> float:
        """The 2-norm of all gradients, replicas counted once."""
        return math.sqrt(sum(self.squared_norms))


def summary_length(plan: Plan, output_stage: int) -> int:
    """Return how many numbers a summary consists of."""
    return _Places.of(plan, output_stage).length


class ReplicaSummary(NamedTuple):
    """What one replica has to say of a mini-batch."""

    slot: ReplicaSlot
    loss: float
    """The part of the mini-batch's loss that it has computed."""
    first_bad: float
    """Its first micro-batch with an output that was NaN or infinite; infinity if all were finite."""
    squared_norm: float = 0.0
    """The squared 2-norm of its gradients, or of the shards that it counts."""
    loss_weight: float = 0.0
    """The sum of the weights that the loss function returned with sums."""


def summarise_step(
    numbers: ScalarSum, plan: Plan, runs: Sequence[StageReplicaRun], output_stage: int, *, with_norms: bool = False
) -> StepSummary:
    """Sum up the step over all ranks; every rank must call this."""
    own: list[ReplicaSummary] = []
    for run in runs:
        ((loss, first_bad),) = losses_and_first_bads(run, 1)
        squared_norm = total_norm(counted_gradients(plan, run.replica)) ** 2 if with_norms else 0.0
        weight = sum(map(float, run.loss_weights.values()))
        own.append(ReplicaSummary(run.replica.slot, loss, first_bad, squared_norm, weight))
    return sum_up(numbers, plan, [own], output_stage)[0]


def sum_up(
    numbers: ScalarSum, plan: Plan, mini_batches: Sequence[Sequence[ReplicaSummary]], output_stage: int
) -> list[StepSummary]:
    """Sum up mini-batches over all ranks; every rank must call this.

    Every number has its own position in one vector, and only one rank contributes to a position. So the sum over ranks
    is exact, and the losses are added in replica order wherever the replicas run.

    Args:
        numbers: expects so many mini-batches.
        plan: that was run.
        mini_batches: by mini-batch: of this rank's replicas.
        output_stage: that computes the loss.
    """
    places = _Places.of(plan, output_stage)
    given = [number for own in mini_batches for number in places.write(own)]
    sums = numbers.add_up(given)
    count = summary_length(plan, output_stage)
    return [places.read(sums[start : start + count]) for start in range(0, len(sums), count)]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the numbers of one mini-batch stand: losses of the output stage's replicas, then norms of all devices, then
    first bad micro-batches of all replicas, then the weights of the losses.

    The ranks that share a replica compute the same losses, of which the first rank's count. Each has a norm."""

    degrees: list[int]
    shared: list[int]
    """How many ranks share a replica, by stage."""
    output_stage: int

    @staticmethod
    def of(plan: Plan, output_stage: int) -> "_Places":
        return _Places([stage.degree for stage in plan.stages], [stage.tensor for stage in plan.stages], output_stage)

    @property
    def length(self) -> int:
        """How many numbers there are."""
        return 2 * self.degrees[self.output_stage] + sum(self.degrees) + sum(self.devices)

    @property
    def devices(self) -> list[int]:
        """The number of devices of each stage."""
        return [degree * shared for degree, shared in zip(self.degrees, self.shared, strict=True)]

    def write(self, own: Sequence[ReplicaSummary]) -> list[float]:
        degree, devices = self.degrees[self.output_stage], self.devices
        firsts = degree + sum(devices)
        given = [0.0] * self.length
        for replica in own:
            slot = replica.slot
            place = slot.replica * self.shared[slot.stage] + slot.position
            given[degree + sum(devices[: slot.stage]) + place] = replica.squared_norm
            if slot.position:
                continue
            given[firsts + sum(self.degrees[: slot.stage]) + slot.replica] = replica.first_bad
            if slot.stage == self.output_stage:
                given[slot.replica] = replica.loss
                given[firsts + sum(self.degrees) + slot.replica] = replica.loss_weight
        return given

    def read(self, sums: list[float]) -> StepSummary:
        degree = self.degrees[self.output_stage]
        rest = iter(sums[degree:])
        squared_norms = [sum(islice(rest, devices)) for devices in self.devices]
        firsts = [min(islice(rest, replicas)) for replicas in self.degrees]
        return StepSummary(
            loss=sum(sums[:degree]),
            first_bad=tuple(int(first) if math.isfinite(first) else None for first in firsts),
            squared_norms=tuple(squared_norms),
            loss_weight=sum(rest),
        )


def counted_gradients(plan: Plan, replica: StageReplica) -> list[Tensor]:
    """Return the gradients of a replica that count in the norm: a shard where it is, a whole gradient on replica 0.

    Tied parameters count with the first stage that has them. Of a replica that several ranks share, each counts what
    it has alone, and the first one everything else.
    """
    stage, position = replica.slot.stage, replica.slot.position
    elsewhere = {name for tied in plan.tied_gradients if stage in tied.stages[1:] for name in tied.parameters}
    parameters = replica.parameters
    if elsewhere or position:
        names = replica.program.parameter_names
        named = [(names[local], parameter) for local, parameter in replica.module.named_parameters()]
        parameters = [
            parameter
            for name, parameter in named
            if parameter_of(name) not in elsewhere and counted(plan, stage, position, name)
        ]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return local_parts(gradients, whole=replica.slot.replica == 0)


def total_norm(gradients: list[Tensor]) -> float:
    """Return the 2-norm of all gradients together; it is not finite if any element is not."""
    return float(norm_of(gradients)) if gradients else 0.0


def norm_of(gradients: list[Tensor]) -> Tensor:
    """Return the same for at least one gradient, as a 0-d tensor, without waiting for a GPU."""
    # The rows of an index that occurs twice are summed first, as an optimizer does.
    gradients = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    if sum([gradient.numel() for gradient in gradients]) <= _FEW:
        return torch.linalg.vector_norm(flat_vector(gradients))
    return torch.linalg.vector_norm(torch.stack(norms(gradients)))


def losses_and_first_bads(run: StageReplicaRun, mini_batches: int) -> list[tuple[float, float]]:
    """Return, by mini-batch, the part of its loss that a replica has computed, and the first bad micro-batch.

    The micro-batch is counted from the start of the mini-batch, and infinity if all were finite. A GPU is waited for
    only once.

    Args:
        run: of a replica, after a step or a segment.
        mini_batches: of the segment.
    """
    losses = [loss for loss, _ in run.losses]
    seen = [(number, one) for number, sums in run.sums.items() for one in sums]
    mini_batch_losses, firsts = [0.0] * mini_batches, [math.inf] * mini_batches
    if losses or seen:
        micro_batches = max(len(losses), len(run.sums)) // mini_batches
        values: list[float] = torch.stack([*losses, *(one for _, one in seen)]).tolist()
        for position, (value, (_, share)) in enumerate(zip(values, run.losses, strict=False)):
            mini_batch_losses[position // micro_batches] += value * share
        for (number, _), value in zip(seen, values[len(losses) :], strict=True):
            if not math.isfinite(value):
                mini_batch, inside = divmod(number, micro_batches)
                firsts[mini_batch] = min(firsts[mini_batch], inside)
    return [*zip(mini_batch_losses, firsts, strict=True)]


def check_finite(
    result: StepSummary,
    plan: Plan,
    step: int,
    remedy: str = "No weight was changed. Look at this mini-batch, or lower the learning rate.",
) -> None:
    """Refuse a step that computed NaN or infinity.

    Args:
        result: of the step.
        plan: that was run.
        step: from 1.
        remedy: what the reader can do.

    Raises:
        NonFiniteLoss: names the step, the first stage in topological order with a non-finite output and its first
            such micro-batch; or, if all outputs are finite, the last stage with a non-finite gradient, which
            backwards reach first.
    """
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
