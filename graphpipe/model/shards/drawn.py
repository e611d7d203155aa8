"""Drawn values in place of those of a module and of its arguments, to try how ranks share it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.graph import ParameterSlice
from graphpipe.model.capture.reading import SAMPLES
from graphpipe.model.shards.layers.rebuilt import rebuilt
from graphpipe.model.split.submodules import sliced
from graphpipe.model.torch_private import flatten, unflatten

_FAR = 1e-3
"""How far results of equal computations may be apart, relative to the largest value; others are about 1 apart."""

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments of a forward."""


def drawn_call(call: Call, samples: int) -> Call:
    """Return a call with drawn values of so many samples."""
    draw = torch.Generator().manual_seed(0)
    leaves, spec = flatten(call)
    made = [_drawn(leaf, draw, 1.0, samples) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for leaf, like in zip(made, leaves, strict=True):
        if isinstance(like, Tensor) and like.requires_grad:
            leaf.requires_grad_()
    return unflatten(made, spec)


def _drawn(like: Tensor, draw: torch.Generator, scale: float, samples: int | None = None) -> Tensor:
    shape = tuple(int(size) for size in like.shape)
    shape = (samples, *shape[1:]) if samples and shape[:1] == SAMPLES[1:] else shape
    if not like.dtype.is_floating_point:
        return torch.full(shape, like.dtype == torch.bool, dtype=like.dtype)
    return torch.randn(shape, generator=draw).mul(scale).to(like.dtype)


def with_drawn(module: nn.Module) -> nn.Module:
    """Return the same module with drawn parameters. Buffers keep the values that they have."""
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


def slice_of(whole: nn.Module, path: str, piece: ParameterSlice) -> nn.Parameter:
    """Return a slice of a parameter of a module at a path."""
    parameter = whole.get_parameter(piece.parameter.removeprefix(f"{path}.") if path else piece.parameter)
    view = sliced(parameter.detach(), piece)
    return nn.Parameter(view.clone(), parameter.requires_grad)


def near(one: Tensor, other: Tensor) -> bool:
    """Return whether two results are those of equal computations."""
    if one.shape != other.shape or not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    here, there = (
        one.detach().nan_to_num(0.0, 0.0, 0.0),
        other.detach().nan_to_num(0.0, 0.0, 0.0),
    )  # of rows that a mask hides
    return float((here - there).abs().max()) <= _FAR * float(there.abs().max())
