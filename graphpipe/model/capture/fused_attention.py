"""Attention with dropout on a GPU, counted where there is none.

torch computes it with one kernel there (flash, memory-efficient or cuDNN's), which draws the numbers of the dropout
again in the backward. On a CPU it has such a kernel only without dropout, and otherwise makes a matrix of all pairs of
tokens. Both save the same tensors as the CPU's kernel without dropout, and compute as many products.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from graphpipe.devices.registry import kind_of, usable_accelerator

_AT = {
    functional.scaled_dot_product_attention: 4,
    torch.ops.aten.scaled_dot_product_attention.default: 4,
    functional.multi_head_attention_forward: 10,
}
"""The position of `dropout_p` among the arguments. What a function of this list calls cannot be seen."""


def is_fused(module: nn.Module) -> bool:
    """Return whether attention will be one kernel where a model runs, if nobody says where that is.

    It runs on the accelerator that this process can use, or where it is. The CPU is where models are built, and a model
    on the meta device is built to be planned for another machine.
    """
    tensors: Iterable[Tensor] = (*module.parameters(), *module.buffers())
    elsewhere = any(tensor.is_meta or not kind_of(tensor.device).on_host for tensor in tensors)
    return elsewhere or usable_accelerator() is not None


class FusedAttention(TorchFunctionMode):
    """While entered, attention is computed without its dropout, by the kernel that saves what a fused one does."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = False
        """Whether any attention had dropout."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        kwargs = dict(kwargs or {})
        at = _AT.get(func)
        if at is not None and not kwargs.get("need_weights"):  # Their weights are made on a GPU too.
            self.changes |= bool(kwargs.get("dropout_p", args[at] if len(args) > at else 0.0))
            args = (*args[:at], *(0.0 for _ in args[at : at + 1]), *args[at + 1 :])
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        return func(*args, **kwargs)
