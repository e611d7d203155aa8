"""What the ranks of a replica exchange if each has a shard of the sequence between the layers that they share.

Korthikanti et al. 2022 (section 4.2.2) call the last two g and g-bar. A shard has 1/t of the positions, which are the
dimension before the last.

                        forward                            backward
    scatter             take the own shard                 join the gradients of all shards
    gather              join all shards                    take the gradient of the own shard
    gather_parts        join all shards                    sum the gradients of all ranks, take that of the own shard
    reduce_scatter      sum the parts, take the own shard  join the gradients of all shards

What was whole on every rank is scattered, and gathered for what every rank computes whole. `gather_parts` and
`reduce_scatter` are around layers that ranks share.
"""

from typing import Any

import torch
from torch import Tensor

from graphpipe.graph.op_shards import HALF
from graphpipe.model.shards.team import Border, ShardTeam, apply, as_it_is

POSITIONS = -2
"""The dimension of positions: values are (n, positions, width)."""


def scatter(values: Tensor, team: ShardTeam) -> Tensor:
    """Return the shard of this rank of values that all ranks have."""
    return apply(_Scatter, values, team, False)


def gather(shard: Tensor, team: ShardTeam) -> Tensor:
    """Return the shards of all ranks, for what every rank computes whole."""
    return apply(_Gather, shard, team, False)


def gather_parts(shard: Tensor, team: ShardTeam) -> Tensor:
    """Return the shards of all ranks, for layers that they share."""
    return apply(_Gather, shard, team, True)


def reduce_scatter(parts: Tensor, team: ShardTeam) -> Tensor:
    """Return the shard of this rank of the sum of the parts of all ranks."""
    return apply(_Scatter, parts, team, True)


BETWEEN = Border(gather_parts, reduce_scatter, draws_alike=False)
"""Around layers between which each rank has a shard."""
GATHERED = Border(as_it_is, reduce_scatter, draws_alike=False)
"""The same, where shards were gathered before: around attention whose forward reads the length."""


def _own(values: Tensor, team: ShardTeam) -> Tensor:
    size, rest = divmod(values.shape[POSITIONS], team.size)
    assert not rest, "positions that so many ranks do not divide stay whole"
    # A copy: a view would keep the whole values as long as the shard is saved for a backward.
    return values.narrow(POSITIONS, team.position * size, size).clone(memory_format=torch.contiguous_format)


def _joined(shard: Tensor, team: ShardTeam) -> Tensor:
    return torch.cat(team.gather(shard.contiguous()), dim=POSITIONS)


def _summed(parts: Tensor, team: ShardTeam) -> Tensor:
    return team.add_up_own(torch.stack(parts.chunk(team.size, dim=POSITIONS)))


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, team: ShardTeam, parts: bool) -> Tensor:
        ctx.team = team
        shard = (_summed if parts else _own)(values, team)
        if parts:
            team.note("forward", shard, HALF)
        if ctx.needs_input_grad[0]:
            team.note("backward", shard, HALF)
        return shard

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return _joined(grad_outputs[0], ctx.team), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, team: ShardTeam, parts: bool) -> Tensor:
        ctx.team, ctx.parts = team, parts
        team.note("forward", shard, HALF)
        if parts and ctx.needs_input_grad[0]:
            team.note("backward", shard, HALF)
        return _joined(shard, team)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return (_summed if ctx.parts else _own)(grad_outputs[0], ctx.team), None, None
