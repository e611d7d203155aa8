"""Modules whose ranks share more than a layer: mixtures of experts, and what lies between two shared layers."""

from typing import Any, final

import torch
from torch import Tensor, nn

from graphpipe.model.shards.layers.rebuilt import called_with, without_parameters
from graphpipe.model.shards.team import Border, ShardTeam, enter_weight


@final
class SharedExperts(nn.Module):
    """A mixture of which each rank computes some hidden units of every expert.

    Every rank computes the tokens of every expert, so no token travels; the results of the ranks are summed.

    Args:
        experts: the whole, with weights `gate_up_proj` (experts, 2 x width, inputs) and `down_proj` (experts, inputs,
            width). Its forward takes tokens, the experts of each token, and their weights.
        gate: part of the first half of `gate_up_proj`.
        up: the same part of its second half.
        down: the same part of `down_proj`.
        team: the ranks.
        border: around the experts.
    """

    def __init__(
        self,
        experts: nn.Module,
        gate: nn.Parameter,
        up: nn.Parameter,
        down: nn.Parameter,
        team: ShardTeam,
        border: Border,
    ) -> None:
        super().__init__()
        self.gate, self.up, self.down, self.team, self.border = gate, up, down, team, border
        self.inner = without_parameters(experts)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the sum over the ranks."""
        weights = {"gate_up_proj": torch.cat([self.gate, self.up], 1), "down_proj": self.down}
        entered = [self._entered(each) for each in args]
        named = {name: self._entered(each) for name, each in kwargs.items()}
        return self.border.leave(called_with(self.inner, weights, *entered, **named), self.team)

    def _entered(self, value: Any) -> Any:
        return self.border.enter(value, self.team) if isinstance(value, Tensor) else value


@final
class CopiedInside(nn.Module):
    """A module with whole weights among values that ranks share, such as a norm of each head: gradients are summed.

    Args:
        module: the whole.
        team: the ranks.
    """

    def __init__(self, module: nn.Module, team: ShardTeam) -> None:
        super().__init__()
        self.team = team
        self.names = tuple(name for name, _ in module.named_parameters(recurse=False))
        for name in self.names:
            self.register_parameter(name, module.get_parameter(name))
        self.inner = without_parameters(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        weights = {name: enter_weight(self.get_parameter(name), self.team) for name in self.names}
        return called_with(self.inner, weights, *args, **kwargs)
