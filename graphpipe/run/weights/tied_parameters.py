"""Parameters that stages share, as a rank holds them: gradients summed over all holders, every copy updated alike."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from graphpipe.plans import Plan
from graphpipe.plans.tied_gradients import Exchange
from graphpipe.run.comm import broadcast as share
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import World
from graphpipe.run.weights.gradient_sum import sum_between_ranks, sum_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParameters:
    """The parameters of one `Exchange` on one rank."""

    name: str
    """Of the first stage that has them, for errors."""
    copies: tuple[tuple[nn.Parameter, ...], ...]
    """Per parameter, every copy here once. Stages that run the user's own module have it in common."""
    updated: frozenset[int]
    """Of the copies those, by identity, that this rank's optimizer changes; the others follow them."""
    ranks: tuple[int, ...]
    """Of all holders, each once, ascending; empty where this rank is none of them."""
    source: int
    """The rank whose copy decides the weights."""

    @property
    def firsts(self) -> list[nn.Parameter]:
        """One copy of each parameter."""
        return [copies[0] for copies in self.copies]

    def sum_gradients(self, world: World) -> None:
        """Give all copies that are updated, here and elsewhere, the sum of all copies' gradients."""
        for copies in self.copies:
            sum_copies(copies, self.name)
        if len(self.ranks) > 1:
            sum_between_ranks(world, self.firsts, self.ranks, self.name)
        for first, *others in self.copies:
            for other in others:
                other.grad = first.grad.clone() if first.grad is not None and id(other) in self.updated else None

    def align(self, world: World) -> None:
        """Give all copies the values of the source's."""
        if len(self.ranks) > 1:
            share.broadcast(world, self.firsts, self.source, self.ranks)
        with torch.no_grad():
            for first, *others in self.copies:
                for other in others:
                    other.copy_(first)


Held = Mapping[tuple[int, int], Mapping[str, nn.Parameter]]
"""The parameters of every replica on a rank, by name in the model; replicas by stage and number."""


def shared_parameters(
    plan: Plan, placement: Placement, held: Held, leaders: Collection[tuple[int, int]]
) -> list[SharedParameters]:
    """Return what this rank holds of each of the plan's exchanges.

    Args:
        plan: says which stages share what.
        placement: of the plan on the ranks.
        held: the parameters of this rank's replicas.
        leaders: the replicas whose parameters this rank's optimizer changes.
    """
    return [_of(each, plan, placement, held, leaders) for each in plan.exchanges]


def _of(
    exchange: Exchange, plan: Plan, placement: Placement, held: Held, leaders: Collection[tuple[int, int]]
) -> SharedParameters:
    seats = sorted((seat for seat in held if seat[0] in exchange.stages), key=lambda seat: (seat not in leaders, seat))
    copies = [{id(held[seat][name]): held[seat][name] for seat in seats} for name in exchange.parameters if seats]
    ranks = sorted({rank for stage in exchange.stages for rank in placement.ranks(stage)})
    return SharedParameters(
        name=plan.stages[exchange.stages[0]].name,
        copies=tuple(tuple(each.values()) for each in copies),
        updated=frozenset(id(held[seat][name]) for seat in seats if seat in leaders for name in exchange.parameters),
        ranks=tuple(ranks) if seats else (),
        source=placement.ranks(exchange.stages[0])[0],
    )


def apart(shared: Sequence[SharedParameters]) -> frozenset[int]:
    """Return the parameters, by identity, that a stage's replicas do not sum among themselves."""
    return frozenset(id(copy) for each in shared for copies in each.copies for copy in copies)
