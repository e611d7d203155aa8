"""The ranks that share the operators of a replica, and what they exchange in forwards and backwards.

Megatron-LM (Shoeybi et al. 2019, section 3) calls the first two f and g:

                    forward                          backward
    enter           nothing                          sum the gradients of all ranks
    add_up          sum the parts of all ranks       nothing
    join            join the columns of all ranks    take the own columns of the gradient
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from graphpipe.graph.op_shards import HALF

ExchangeKind = Literal["forward", "backward", "weights"]
"""When ranks exchange something: in a forward; in a backward, of gradients of values; or of those of parameters."""


class ShardTeam(ABC):
    """The ranks that share a replica, as one of them sees them. Copies of a module have the same team.

    Args:
        size: how many ranks.
        position: of this rank among them, from 0.
    """

    def __init__(self, size: int, position: int) -> None:
        self.size, self.position = size, position
        self._region: AbstractContextManager[None] | None = None

    @abstractmethod
    def add_up(self, values: Tensor) -> None:
        """Replace a contiguous tensor by its sum over the ranks, which all call this."""

    @abstractmethod
    def add_up_own(self, values: Tensor) -> Tensor:
        """Return the own entry of the sum over the ranks of contiguous tensors, whose first dimension is the ranks."""

    @abstractmethod
    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, by position; all of them call this with contiguous tensors of one shape."""

    def note(self, kind: ExchangeKind, values: Tensor, reductions: float = 1.0) -> None:
        """Take note of an exchange that is done, or of one that a backward will do; for those that count.

        Args:
            kind: when it is done.
            values: whose bytes count as summed: of what is gathered or scattered among two ranks, those of one.
            reductions: the steps that it takes, in all-reduces: `HALF` for an all-gather or a reduce-scatter.
        """
        return

    @contextmanager
    def own_draws(self) -> Generator[None]:
        """Draw other random numbers than the other ranks in a block; afterwards all draw the same ones again."""
        yield

    def enter_region(self) -> None:
        """Begin to draw other random numbers than the other ranks, unless that has begun."""
        if self._region is None:
            self._region = self.own_draws()
            self._region.__enter__()

    def leave_region(self) -> None:
        """Draw the same random numbers as the other ranks again."""
        if self._region is not None:
            region, self._region = self._region, None
            region.__exit__(None, None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


Exchange = Callable[[Tensor, ShardTeam], Tensor]


@dataclass(frozen=True, slots=True)
class Border:
    """How values go into layers that ranks share, and out of them."""

    enter: Exchange
    leave: Exchange
    draws_alike: bool
    """Whether ranks draw the same random numbers outside of these layers, because they have the same values there."""


class Entrance:
    """Where values enter what the ranks share. Layers that read the same tensor enter it once, and sum one gradient.

    Args:
        team: the ranks.
        border: around these layers.
        readers: how many layers enter values here in a forward. What enters is kept for all of them, and no longer.
    """

    def __init__(self, team: ShardTeam, border: Border, readers: int = 0) -> None:
        self.team, self.border, self.readers = team, border, readers
        self._last: tuple[Tensor, Tensor, bool] | None = None
        self._left = 0

    def enter(self, values: Tensor) -> Tensor:
        """Return the values as layers read them."""
        graded = torch.is_grad_enabled()  # what enters without has no gradient for a later call with the same values
        if self._last is not None and self._last[0] is values and self._last[2] == graded:
            entered, self._left = self._last[1], self._left - 1
        else:
            entered, self._left = self.border.enter(values, self.team), self.readers - 1
            self._last = values, entered, graded
        if self._left < 1:
            self.forget()
        return entered

    def forget(self) -> None:
        """Keep what has entered no longer."""
        self._last = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Entrance":
        return memo.setdefault(id(self), Entrance(self.team, self.border, self.readers))


def enter(values: Tensor, team: ShardTeam) -> Tensor:
    """Return the values; the gradient is the sum of those of all ranks."""
    if not (torch.is_grad_enabled() and values.requires_grad):
        return values
    return apply(_Enter, values, team, "backward")


def enter_weight(parameter: Tensor, team: ShardTeam) -> Tensor:
    """Return a parameter that all ranks have, and of which each sees a part; its gradient is the sum of theirs."""
    if not (torch.is_grad_enabled() and parameter.requires_grad):
        return parameter
    return apply(_Enter, parameter, team, "weights")


def add_up(parts: Tensor, team: ShardTeam) -> Tensor:
    """Return the sum of the parts of all ranks; nothing else may use `parts` afterwards."""
    return apply(_AddUp, parts, team)


def join(columns: Tensor, team: ShardTeam, total: int) -> Tensor:
    """Return the columns (last dimension) of all ranks, one rank after the other.

    Args:
        columns: those of this rank, as `own_range` says.
        team: the ranks.
        total: columns of all ranks.
    """
    return apply(_Join, columns, team, total)


def own_range(length: int, size: int, position: int) -> tuple[int, int]:
    """Return where the part of a rank begins and ends. If the length does not divide, parts differ by one."""
    return length * position // size, length * (position + 1) // size


def as_it_is(values: Tensor, team: ShardTeam) -> Tensor:
    """Return the values."""
    del team
    return values


INSIDE = Border(as_it_is, as_it_is, draws_alike=False)
"""Around a layer inside of what ranks share: something else exchanges values."""
AROUND = Border(enter, add_up, draws_alike=True)
"""Around layers of which each rank has the whole values before and behind."""


def apply(function: type[torch.autograd.Function], values: Tensor, *others: object) -> Tensor:
    """Return what a function of autograd returns for these arguments."""
    applied: Any = function.apply
    return applied(values, *others)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, team: ShardTeam, kind: ExchangeKind) -> Tensor:
        ctx.team = team
        team.note(kind, values)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        total = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        ctx.team.add_up(total)
        return total, None, None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, team: ShardTeam) -> Tensor:
        if not parts.is_contiguous():
            parts = parts.contiguous()
        else:
            ctx.mark_dirty(parts)
        team.note("forward", parts)
        team.add_up(parts)
        return parts

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, team: ShardTeam, total: int) -> Tensor:
        ranges = [own_range(total, team.size, position) for position in range(team.size)]
        widths = [stop - start for start, stop in ranges]
        ctx.range = ranges[team.position]
        missing = max(widths) - columns.shape[-1]
        padded = torch.nn.functional.pad(columns, (0, missing)) if missing else columns.contiguous()
        team.note("forward", padded, HALF)
        given = team.gather(padded)
        return torch.cat([each[..., :width] for each, width in zip(given, widths, strict=True)], dim=-1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        start, stop = ctx.range
        return grad_outputs[0][..., start:stop], None, None
