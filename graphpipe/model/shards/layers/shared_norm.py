"""The channels of a norm over samples that one of the ranks of a replica computes."""

from typing import final

import torch
from torch import Tensor, nn

from graphpipe.graph.op_shards import HALF
from graphpipe.model.shards.layers.rebuilt import called_with, without_parameters
from graphpipe.model.shards.team import ShardTeam, own_range

_STATISTICS = ("running_mean", "running_var")


@final
class ChannelNorm(nn.Module):
    """A batch norm of some channels. Its statistics are whole on each rank: ranks gather them after each forward.

    Args:
        norm: the whole.
        weight: of these channels; None if it has none.
        bias: the same.
        team: the ranks.
    """

    def __init__(
        self,
        norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d,
        weight: nn.Parameter | None,
        bias: nn.Parameter | None,
        team: ShardTeam,
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.team = weight, bias, team
        self.start, self.stop = own_range(norm.num_features, team.size, team.position)
        self.inner = without_parameters(norm)
        self.names = tuple(name for name, _ in norm.named_buffers(recurse=False))
        for name in self.names:
            self.register_buffer(name, norm.get_buffer(name))
            delattr(self.inner, name)

    def forward(self, values: Tensor) -> Tensor:
        """Return the normed channels of this rank."""
        # The backward keeps the statistics that the forward was called with, so these are a copy.
        own: dict[str, Tensor | None] = {
            name: each[self.start : self.stop].clone() if name in _STATISTICS else each
            for name in self.names
            for each in [self.get_buffer(name)]
        }
        given = {name: each for name, each in (("weight", self.weight), ("bias", self.bias)) if each is not None}
        self.inner.training = self.training
        result = called_with(self.inner, {**own, **given}, values)
        statistics = [each for name in _STATISTICS if (each := own.get(name)) is not None]
        if self.training and statistics:
            self._gather(torch.stack(statistics))
        return result

    @torch.no_grad()
    def _gather(self, own: Tensor) -> None:
        self.team.note("forward", own, HALF)
        for name, whole in zip(_STATISTICS, torch.cat(self.team.gather(own), -1), strict=True):
            self.get_buffer(name).copy_(whole)
