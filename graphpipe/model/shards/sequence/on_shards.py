"""Submodules that are called with shards of the sequence."""

from typing import Any, final

from torch import Tensor, nn

from graphpipe.model.shards.sequence.exchange import gather, gather_parts, scatter
from graphpipe.model.shards.team import ShardTeam
from graphpipe.model.split.submodules import Conversion


@final
class OnShards(nn.Module):
    """A submodule that computes the shard of this rank: (n, positions / t, width) -> the same.

    Args:
        module: the part of this rank.
        team: the ranks.
        draws: whether it drops values, which must be others on each rank.
    """

    def __init__(self, module: nn.Module, team: ShardTeam, *, draws: bool) -> None:
        super().__init__()
        self.module, self.team, self.draws = module, team, draws

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the submodule."""
        if not (self.draws and self.training):
            return self.module(*args, **kwargs)
        self.team.enter_region()
        try:
            return self.module(*args, **kwargs)
        finally:
            self.team.leave_region()


@final
class Gathered(nn.Module):
    """Attention that gets the shards of all ranks: what it returns are shards again.

    Args:
        module: the heads of this rank. Values of a sequence are arguments of its forward with three dimensions.
        team: the ranks.
    """

    def __init__(self, module: nn.Module, team: ShardTeam) -> None:
        super().__init__()
        self.module, self.team = module, team

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the submodule."""
        known: dict[int, Tensor] = {}
        return self.module(
            *(self._gathered(each, known) for each in args),
            **{name: self._gathered(each, known) for name, each in kwargs.items()},
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _gathered(self, value: Any, known: dict[int, Tensor]) -> Any:
        if not (isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()):
            return value
        if id(value) not in known:
            known[id(value)] = gather_parts(value, self.team)
        return known[id(value)]


@final
class Converted(nn.Module):
    """Scatters whole values, or gathers shards.

    Args:
        how: which of both.
        team: the ranks.
    """

    def __init__(self, how: Conversion, team: ShardTeam) -> None:
        super().__init__()
        self.how, self.team = how, team
        self.training = False  # nothing follows its mode

    def forward(self, values: Tensor) -> Tensor:
        """Return shards for whole values, or whole values for shards."""
        return scatter(values, self.team) if self.how == "scatter" else gather(values, self.team)
