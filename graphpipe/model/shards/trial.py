"""Tries a layout: two threads compute the parts of a submodule on drawn values, and are compared with the whole.

A forward may use the whole width of a layer in a way that its structure does not show, such as a norm over all heads.
"""

from collections.abc import Mapping, Sequence
from threading import Barrier, Thread
from typing import Any, final

import torch
from torch import Tensor, nn

from graphpipe.graph import ParameterSlice, SubmoduleShards
from graphpipe.model.capture.reading import SAMPLES
from graphpipe.model.shards.rebuilt import rebuilt
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.team import ShardTeam
from graphpipe.model.split.submodules import sliced
from graphpipe.model.torch_private import flatten, unflatten

_RANKS = 2
_FAR = 1e-3
"""How far results of equal computations may be apart, relative to the largest value; others are about 1 apart."""
_MOST = 2**26
"""A submodule with more elements is not tried: it would take gigabytes."""

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments of a forward."""


def disagrees(module: nn.Module, path: str, shards: Sequence[SubmoduleShards], call: Call) -> bool:
    """Return whether the parts of a submodule compute something else than the whole.

    A submodule that is large, or does not run on drawn values, is not tried.

    Args:
        module: the submodule, with or without data. It does not change.
        path: in the model.
        shards: how ranks share it.
        call: arguments whose tensors have the shapes and dtypes of real ones. One sample of them is tried.
    """
    if sum(each.numel() for each in module.parameters()) > _MOST:
        return False
    try:
        drawn = _drawn_call(call)
        whole = _with_drawn(module).eval()
        wanted = _results(whole, drawn)
    except Exception:  # any error of a forward that does not take drawn values
        return False
    teams = _ThreadTeam.make()
    found: list[list[Tensor] | None] = [None] * _RANKS

    def compute(team: _ThreadTeam) -> None:
        try:
            made = SharedSubmodule(shards, team, lambda piece: _slice(whole, path, piece)).make(whole, path)
            found[team.position] = _results(made, drawn)
        except Exception:  # as above
            team.barrier.abort()

    threads = [Thread(target=compute, args=(team,)) for team in teams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return any(own is None or not _equal(own, wanted) for own in found)


@final
class _ThreadTeam(ShardTeam):
    """A thread among those that share a submodule."""

    def __init__(self, position: int, barrier: Barrier, values: list[Any]) -> None:
        super().__init__(_RANKS, position)
        self.barrier, self._values = barrier, values

    @staticmethod
    def make() -> list["_ThreadTeam"]:
        barrier, values = Barrier(_RANKS), list[Any]([None] * _RANKS)
        return [_ThreadTeam(position, barrier, values) for position in range(_RANKS)]

    def add_up(self, values: Tensor) -> None:
        total = torch.stack(self.gather(values)).sum(0)
        with torch.no_grad():
            values.copy_(total)

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
    return len(found) == len(wanted) and all(map(_near, found, wanted))


def _near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    here, there = one.nan_to_num(0.0, 0.0, 0.0), other.nan_to_num(0.0, 0.0, 0.0)  # of rows that a mask hides
    return float((here - there).abs().max()) <= _FAR * float(there.abs().max())


def _drawn_call(call: Call) -> Call:
    draw = torch.Generator().manual_seed(0)
    leaves, spec = flatten(call)
    made = [_drawn(leaf, draw, 1.0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for leaf, like in zip(made, leaves, strict=True):
        if isinstance(like, Tensor) and like.requires_grad:
            leaf.requires_grad_()
    return unflatten(made, spec)


def _drawn(like: Tensor, draw: torch.Generator, scale: float) -> Tensor:
    shape = tuple(int(size) for size in like.shape)
    shape = (1, *shape[1:]) if shape[:1] == SAMPLES[1:] else shape
    if not like.dtype.is_floating_point:
        return torch.full(shape, like.dtype == torch.bool, dtype=like.dtype)
    return torch.randn(shape, generator=draw).mul(scale).to(like.dtype)


def _with_drawn(module: nn.Module) -> nn.Module:
    # The same module with drawn parameters. Buffers keep the values that they have.
    draw, made = torch.Generator().manual_seed(1), dict[int, Tensor]()
    for parameter in module.parameters():
        scale = max(1, parameter.shape[-1] if parameter.ndim else 1) ** -0.5
        made[id(parameter)] = nn.Parameter(_drawn(parameter, draw, scale), parameter.requires_grad)
    for buffer in module.buffers():
        made[id(buffer)] = _drawn(buffer, draw, 1.0) if buffer.is_meta else buffer.detach().clone()
    return _replaced(module, made)


def _replaced(module: nn.Module, made: Mapping[int, Tensor]) -> nn.Module:
    copied = rebuilt(module, {name: _replaced(child, made) for name, child in module.named_children()})
    for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
        setattr(copied, name, made[id(parameter)])
    for name, buffer in [*module.named_buffers(recurse=False, remove_duplicate=False)]:
        setattr(copied, name, made[id(buffer)])
    return copied


def _slice(whole: nn.Module, path: str, piece: ParameterSlice) -> nn.Parameter:
    parameter = whole.get_parameter(piece.parameter.removeprefix(f"{path}.") if path else piece.parameter)
    view = sliced(parameter.detach(), piece)
    return nn.Parameter(view.clone(), parameter.requires_grad)
