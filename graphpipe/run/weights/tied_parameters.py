"""Tied parameters on one rank: gradients are summed over all stages that share them, and all copies stay equal."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from graphpipe.graph import parameter_of
from graphpipe.plans import Plan
from graphpipe.plans.tied_gradients import TiedGradients
from graphpipe.run.comm.broadcast import broadcast_tensors
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.tensor.tensor_slices import divided_parameters
from graphpipe.run.weights.gradient_sum import sum_between_ranks, sum_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameters:
    """The parameters of one `TiedGradients` on one rank."""

    name: str
    """Name of the first stage that has them, for errors."""
    copies: tuple[tuple[nn.Parameter, ...], ...]
    """The copies of each parameter on this rank, each once. Stages that run the user's own module use the same copy."""
    updated: frozenset[int]
    """Ids of the copies that this rank's optimizer changes. The other copies get their values."""
    ranks: tuple[int, ...]
    """All ranks with a copy, ascending. Empty if this rank has no copy."""
    source: int
    """The rank whose copy sets the weights of all others."""
    adds: bool = True
    """Whether this rank's gradients count. If all ranks that share a replica have the whole, only the first's do."""

    @property
    def firsts(self) -> list[nn.Parameter]:
        """One copy of each parameter."""
        return [copies[0] for copies in self.copies]

    def sum_gradients(self, world: World) -> None:
        """Give every copy that an optimizer changes the sum of all copies' gradients, over all ranks."""
        for copies in self.copies:
            sum_copies(copies)
            if not self.adds:
                copies[0].grad = None
        if len(self.ranks) > 1:
            sum_between_ranks(world, self.firsts, self.ranks, self.name)
        for first, *others in self.copies:
            for other in others:
                other.grad = first.grad.clone() if first.grad is not None and id(other) in self.updated else None

    def align(self, world: World) -> None:
        """Copy the values of the source rank's copy to all others."""
        if len(self.ranks) > 1:
            broadcast_tensors(world, self.firsts, self.source, self.ranks)
        with torch.no_grad():
            for first, *others in self.copies:
                for other in others:
                    other.copy_(first)


ReplicaParameters = Mapping[tuple[int, int], Mapping[str, nn.Parameter]]
"""The parameters of the replicas on a rank, by stage and number of the replica, then by name in the model."""


def tied_ranks(plan: Plan, placement: RankPlacement, tied: TiedGradients) -> list[list[int]]:
    """Return the groups of ranks that sum the gradients of tied parameters.

    Where the ranks of a replica divide the parameters, those with the same part sum theirs. Otherwise all ranks do, and
    of a replica only the first one adds something.
    """
    shared = plan.stages[tied.stages[0]].tensor
    if tied.parameters[0] in divided_parameters(plan, tied.stages[0]):
        return [_ranks(placement.ranks(stage, at) for stage in tied.stages) for at in range(shared)]
    return [_ranks(placement.all_ranks(stage) for stage in tied.stages)]


def find_tied_parameters(
    plan: Plan, placement: RankPlacement, parameters: ReplicaParameters, leaders: Collection[tuple[int, int]], rank: int
) -> list[TiedParameters]:
    """Return the tied parameters on this rank, one value for each of `Plan.tied_gradients`.

    Args:
        plan: with the stages that share parameters.
        placement: of the plan on the ranks.
        parameters: the parameters of this rank's replicas.
        leaders: the replicas whose parameters this rank's optimizer changes.
        rank: this one.
    """
    return [_of(tied, plan, placement, parameters, leaders, rank) for tied in plan.tied_gradients]


def _of(
    tied: TiedGradients,
    plan: Plan,
    placement: RankPlacement,
    parameters: ReplicaParameters,
    leaders: Collection[tuple[int, int]],
    rank: int,
) -> TiedParameters:
    replicas = [replica for replica in parameters if replica[0] in tied.stages]
    replicas.sort(key=lambda replica: (replica not in leaders, replica))
    known = [*parameters[replicas[0]]] if replicas else []
    names = [name for whole in tied.parameters for name in sorted(known) if parameter_of(name) == whole]
    updated = [parameters[replica][name] for replica in replicas if replica in leaders for name in names]
    copies = [[parameters[replica][name] for replica in replicas] for name in names]
    groups = tied_ranks(plan, placement, tied)
    ranks = next((group for group in groups if rank in group), [])
    first = placement.ranks(tied.stages[0], groups.index(ranks) if ranks else 0)
    adds = len(groups) > 1 or any(not placement.position(stage, rank) for stage, _ in replicas)
    return TiedParameters(
        name=plan.stages[tied.stages[0]].name,
        copies=tuple(tuple({id(copy): copy for copy in parameter_copies}.values()) for parameter_copies in copies),
        updated=frozenset(map(id, updated)),
        ranks=tuple(ranks) if replicas else (),
        source=first[0],
        adds=adds,
    )


def _ranks(groups: Iterable[Sequence[int]]) -> list[int]:
    return sorted({rank for group in groups for rank in group})


def tied_parameter_ids(shared: Sequence[TiedParameters]) -> frozenset[int]:
    """Return the ids of all tied parameters, whose gradients are not summed within one stage only."""
    return frozenset(id(copy) for tied in shared for copies in tied.copies for copy in copies)
