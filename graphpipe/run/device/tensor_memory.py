"""Gives tensors of a model memory, and takes it: the tensors stay the same objects, which others may hold.

Torch cannot set the data of a tensor on the meta device, so the contents of two tensors are exchanged.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_FREED = "freed_by_pipeline"
"""An attribute of tensors whose memory a pipeline has taken."""


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
    freed = _become(tensor, torch.empty_like(tensor, device="meta"), roots)
    setattr(freed, _FREED, True)
    return freed


def was_freed(tensor: Tensor) -> bool:
    """Whether `take_memory` has moved a tensor to the meta device, so that its values are lost here."""
    return tensor.is_meta and _FREED in vars(tensor)


@torch.no_grad()
def _become(tensor: Tensor, values: Tensor, roots: Iterable[nn.Module]) -> Tensor:
    trainable, is_parameter = tensor.requires_grad, isinstance(tensor, nn.Parameter)
    made = nn.Parameter(values, trainable) if is_parameter else values.requires_grad_(trainable)
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
