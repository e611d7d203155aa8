"""Attention on a GPU, counted where there is none.

torch computes it with one kernel there (flash, memory-efficient or cuDNN's), which draws the numbers of the dropout
again in the backward. On a CPU it has such a kernel only without dropout, and otherwise makes a matrix of all pairs of
tokens. Both save the same tensors as the CPU's kernel without dropout, and compute as many products.

On a GPU, torch makes the matrix where no kernel takes the inputs (aten's transformers/cuda/sdp_utils.cpp):

    flash             fp16 or bf16, no mask, heads of equal widths up to 256
    memory-efficient  also fp32, and masks without gradients; widths in multiples of 16 bytes
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from graphpipe.devices.registry import kind_of, usable_accelerator

_AT = {
    functional.scaled_dot_product_attention: 4,
    torch.ops.aten.scaled_dot_product_attention.default: 4,
    functional.multi_head_attention_forward: 10,
}
"""The position of `dropout_p` among the arguments. What a function of this list calls cannot be seen."""
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_WIDTH, _ALIGNED_BYTES = 256, 16


def is_fused(module: nn.Module) -> bool:
    """Return whether attention will be one kernel where a model runs, if nobody says where that is.

    It runs on the accelerator that this process can use, or where it is. The CPU is where models are built, and a model
    on the meta device is built to be planned for another machine.
    """
    tensors: Iterable[Tensor] = (*module.parameters(), *module.buffers())
    elsewhere = any(tensor.is_meta or not kind_of(tensor.device).on_host for tensor in tensors)
    return elsewhere or usable_accelerator() is not None


class FusedAttention(TorchFunctionMode):
    """While entered, attention is computed without its dropout, by the kernel that saves what a fused one does.

    Where a GPU has no kernel for it, the matrix of all pairs is made, as there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes = False
        """Whether any attention is counted otherwise than on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        kwargs = dict(kwargs or {})
        at = _AT.get(func)
        if at is not None and not kwargs.get("need_weights"):  # Their weights are made on a GPU too.
            dropout = bool(kwargs.get("dropout_p", args[at] if len(args) > at else 0.0))
            if func is not functional.multi_head_attention_forward and not _has_kernel(*args[:4], **kwargs):
                self.changes |= not dropout
                with sdpa_kernel(SDPBackend.MATH):
                    return func(*args, **kwargs)
            self.changes |= dropout
            args = (*args[:at], *(0.0 for _ in args[at : at + 1]), *args[at + 1 :])
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        return func(*args, **kwargs)


def _has_kernel(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any) -> bool:
    """Return whether a GPU computes this attention with one kernel."""
    dtype = query.dtype
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    widths = {each.shape[-1] for each in (query, key, value)}
    if dtype in _HALVES and attn_mask is None and len(widths) == 1 and max(widths) <= _FLASH_WIDTH:
        return True
    aligned = query.shape[-1] == key.shape[-1] and all(not width * dtype.itemsize % _ALIGNED_BYTES for width in widths)
    known = dtype in (*_HALVES, torch.float32)
    return known and aligned and not (attn_mask is not None and attn_mask.requires_grad)
