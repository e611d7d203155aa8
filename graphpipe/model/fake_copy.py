"""A copy of a module whose tensors have shapes and no data."""

import copy
from contextlib import AbstractContextManager

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import is_lazy


def fake_copy(module: nn.Module, mode: AbstractContextManager[object], device: torch.device | str = "cpu") -> nn.Module:
    """Return a copy of `module` in training mode whose parameters and buffers are fake tensors of `mode` on `device`.

    Raises:
        InvalidInput: a lazy parameter without a shape, or a module that cannot be copied.
    """
    memo: dict[int, object] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            remedy = "Run the model once, so that its lazy modules get their shapes."
            raise InvalidInput(f"parameter '{name}' has no shape yet", where="capture", remedy=remedy)
        with mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            trainable = tensor.requires_grad
            memo[id(tensor)] = nn.Parameter(fake, trainable) if isinstance(tensor, nn.Parameter) else fake
    try:
        return copy.deepcopy(module, memo).train()
    except (TypeError, RuntimeError) as error:
        what = f"{type(module).__name__} cannot be copied: {str(error).splitlines()[0]}"
        remedy = "Remove locks, handles and computed tensors from its attributes."
        raise InvalidInput(what, where="capture", remedy=remedy) from None
