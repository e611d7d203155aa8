"""Gives tensors of a model memory, and takes it: the tensors stay the same objects, which others may hold.

Torch cannot set the data of a tensor on the meta device, so the contents of two tensors are exchanged.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import write_count

_DATA: Any = Tensor.data
_FREED = "freed_by_pipeline"
"""An attribute of tensors whose memory a pipeline has taken."""
_TAKEN = "data_was_taken"
"""An attribute of them: how often their `data` was asked for."""


def give_memory(tensor: Tensor, roots: Iterable[nn.Module]) -> Tensor:
    """Give a tensor of the meta device zeros on the CPU, and return it.

    Args:
        tensor: a parameter or a buffer.
        roots: modules that may hold it.

    Returns:
        The same tensor. If others hold weak references to it, which cannot follow, another one in its place.
    """
    vars(tensor).pop(_FREED, None)
    return _become(tensor, torch.zeros_like(tensor, device="cpu"), roots)


def take_memory(tensor: Tensor, roots: Iterable[nn.Module]) -> Tensor:
    """Move a tensor to the meta device, so that its memory is free, and return it (see `give_memory`)."""
    tensor.grad = None
    freed = _become(tensor, torch.empty_like(tensor, device="meta"), roots, _FreedParameter)
    setattr(freed, _FREED, True)
    return freed


def was_freed(tensor: Tensor) -> bool:
    """Whether `take_memory` has moved a tensor to the meta device, so that its values are lost here."""
    return tensor.is_meta and _FREED in vars(tensor)


def times_written(tensor: Tensor) -> int:
    """Return a number that grows when a tensor is changed in place, whether or not it has memory."""
    return write_count(tensor) + vars(tensor).get(_TAKEN, 0)


def _data(parameter: Tensor) -> Tensor:
    setattr(parameter, _TAKEN, 1 + vars(parameter).get(_TAKEN, 0))
    return _DATA.__get__(parameter)


class _FreedParameter(nn.Parameter):
    """Counts how often its `data` is asked for: torch does not count what is written there (`weight.data.clamp_()`)."""

    data = property(_data, _DATA.__set__)


@torch.no_grad()
def _become(
    tensor: Tensor, values: Tensor, roots: Iterable[nn.Module], kind: type[nn.Parameter] = nn.Parameter
) -> Tensor:
    trainable, is_parameter = tensor.requires_grad, isinstance(tensor, nn.Parameter)
    made = kind(values, trainable) if is_parameter else values.requires_grad_(trainable)
    vars(made).update(vars(tensor))
    try:
        torch.utils.swap_tensors(tensor, made)
    except RuntimeError:  # weak references, as those of recurrent layers
        _replace(tensor, made, roots)
        return made
    return tensor


def _replace(old: Tensor, new: Tensor, roots: Iterable[nn.Module]) -> None:
    for part in dict.fromkeys(part for root in roots for part in root.modules()):
        held = [*part.named_parameters(recurse=False, remove_duplicate=False)]
        held += [*part.named_buffers(recurse=False, remove_duplicate=False)]
        for name, tensor in held:
            if tensor is old:
                setattr(part, name, new)
