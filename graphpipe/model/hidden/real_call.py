"""Calls of submodules that do not run on tensors without data, such as those with packed sequences or scripted ones.

They run once on real tensors of ones, with weights of ones. Only the shapes of what they return are used.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import call_directly, flatten, non_leaf_alias, outside_tracing, unflatten


def real_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters and buffers are real tensors on the CPU: ones, and zeros if integers.

    Args:
        module: on fake tensors.

    Raises:
        NotImplementedError: it holds whole numbers, such as a stride, for which ones would be other numbers.
    """
    numbers = [name for name, buffer in module.named_buffers() if _is_number(name, buffer)]
    if numbers:
        raise NotImplementedError(f"the numbers in '{numbers[0]}' may decide about shapes")
    memo: dict[int, Any] = {}
    with outside_tracing():
        for tensor in [*module.parameters(), *module.buffers()]:
            made = _ones(tensor.shape, tensor.stride(), tensor.dtype, number=int(tensor.is_floating_point()))
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
        return copy.deepcopy(module, memo)


def _is_number(name: str, buffer: Tensor) -> bool:
    # A norm counts its batches, and ids of positions are long rows.
    return not buffer.is_floating_point() and buffer.numel() == 1 and not name.endswith("num_batches_tracked")


def real_ones(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return ones. They are valid indices and lengths, unlike zeros."""
    return _ones(shape, strides, dtype, number=1)


def call_anyway(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    counting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """Return what a module returns, given fake tensors; if it does not run on them, by a call on real ones.

    Args:
        module: on fake tensors.
        args: of the call.
        kwargs: of the call.
        counting: a context for the call on real tensors.

    Raises:
        Exception: of the module on fake tensors, if it does not run on real ones.
    """
    try:
        return module(*args, **kwargs)
    except Exception as error:
        try:
            found, spec = _on_real_tensors(module, args, kwargs, counting)
        except Exception:
            raise error from None
    return unflatten([_fake(each) if isinstance(each, Tensor) else each for each in found], spec)


def _on_real_tensors(
    module: nn.Module, args: Any, kwargs: Any, counting: Callable[[], AbstractContextManager[object]]
) -> Any:
    leaves, spec = flatten((list(args), dict(kwargs)))
    real = real_copy(module)
    with outside_tracing(), torch.enable_grad():
        given = [_real(each) if isinstance(each, Tensor) else each for each in leaves]
        arguments, named = unflatten(given, spec)
        with counting():
            return flatten(call_directly(real, *arguments, **named))


def _real(tensor: Tensor) -> Tensor:
    made = real_ones(tensor.shape, tensor.stride(), tensor.dtype)
    return non_leaf_alias(made.requires_grad_()) if tensor.requires_grad else made


def _fake(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return non_leaf_alias(made.requires_grad_()) if tensor.requires_grad else made


def _ones(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, *, number: int) -> Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="cpu").fill_(number)
