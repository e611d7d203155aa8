"""Tries a layout: two threads compute the parts of a submodule on drawn values, and are compared with the whole.

A forward may use the whole width of a layer in a way that its structure does not show, such as a norm over all heads.
"""

from collections.abc import Callable, Sequence
from threading import Barrier, Thread
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from graphpipe.graph import SubmoduleShards
from graphpipe.model.shards.drawn import Call, drawn_call, near, slice_of, with_drawn
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.team import ShardTeam
from graphpipe.model.torch_private import flatten, unflatten

_RANKS = 2
MOST = 2**26
"""A submodule with more elements is not tried: it would take gigabytes."""
Found = TypeVar("Found")


def disagrees(module: nn.Module, path: str, shards: Sequence[SubmoduleShards], call: Call) -> bool:
    """Return whether the parts of a submodule compute something else than the whole.

    A submodule that is large, or does not run on drawn values, is not tried.

    Args:
        module: the submodule, with or without data. It does not change.
        path: in the model.
        shards: how ranks share it.
        call: arguments whose tensors have the shapes and dtypes of real ones. One sample of them is tried.
    """
    if sum(each.numel() for each in module.parameters()) > MOST:
        return False
    try:
        drawn = drawn_call(call, 1)
        whole = with_drawn(module).eval()
        wanted = _results(whole, drawn)
    except Exception:  # any error of a forward that does not take drawn values
        return False

    def compute(team: ThreadTeam) -> list[Tensor]:
        made = SharedSubmodule(shards, team, lambda piece: slice_of(whole, path, piece)).make(whole, path)
        return _results(made, drawn)

    return any(own is None or not _equal(own, wanted) for own in computed_by_two(compute))


def computed_by_two(compute: Callable[["ThreadTeam"], Found]) -> list[Found | None]:
    """Return what two threads compute that share a submodule; None for both if one raises an error."""
    teams = ThreadTeam.make()
    found: list[Found | None] = [None] * _RANKS

    def run(team: ThreadTeam) -> None:
        try:
            found[team.position] = compute(team)
        except Exception:  # any error of a forward or a backward that does not take parts
            team.barrier.abort()

    threads = [Thread(target=run, args=(team,)) for team in teams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found if all(own is not None for own in found) else [None] * _RANKS


@final
class ThreadTeam(ShardTeam):
    """A thread among those that share a submodule."""

    def __init__(self, position: int, barrier: Barrier, values: list[Any]) -> None:
        super().__init__(_RANKS, position)
        self.barrier, self._values = barrier, values

    @staticmethod
    def make() -> list["ThreadTeam"]:
        barrier, values = Barrier(_RANKS), list[Any]([None] * _RANKS)
        return [ThreadTeam(position, barrier, values) for position in range(_RANKS)]

    def add_up(self, values: Tensor) -> None:
        total = torch.stack(self.gather(values)).sum(0)
        with torch.no_grad():
            values.copy_(total)

    def add_up_own(self, values: Tensor) -> Tensor:
        return torch.stack(self.gather(values)).sum(0)[self.position]

    def gather(self, values: Tensor) -> list[Tensor]:
        self._values[self.position] = values.detach().clone()
        self.barrier.wait()
        given = [*self._values]
        self.barrier.wait()
        return given


def _results(module: nn.Module, call: Call) -> list[Tensor]:
    """Return the outputs of a forward, and the gradients of its arguments."""
    leaves, spec = flatten(call)
    own = [_leaf(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = unflatten(own, spec)
    with torch.enable_grad():
        outputs = [each for each in flatten(module(*args, **kwargs))[0] if isinstance(each, Tensor)]
        roots = [each for each in outputs if each.requires_grad]
        entered = [each for each in own if isinstance(each, Tensor) and each.requires_grad]
        total = torch.stack([(each * torch.linspace(1, 2, each.shape[-1], dtype=each.dtype)).sum() for each in roots])
        gradients = torch.autograd.grad(total.sum(), entered, allow_unused=True) if entered else ()
    return [*(each.detach() for each in outputs), *filter(_is_there, gradients)]


def _is_there(value: object) -> bool:
    return value is not None


def _leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _equal(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) and all(map(near, found, wanted))
