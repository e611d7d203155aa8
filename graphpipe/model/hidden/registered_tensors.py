"""Parameters and buffers that a forward reaches past the modules that hold them.

    self.scales = [self.first, self.second]     parameters in a list, beside their names
    self.weight = lambda: embedding.weight      a function that holds another module

PyTorch trains both. A trace knows a parameter only by its name in a module, and takes such a one for a constant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import memory_key


@dataclass(frozen=True, slots=True)
class RegisteredTensors:
    """The names of parameters and buffers, by the tensors themselves."""

    names: Mapping[object, str]

    @staticmethod
    def of(*modules: nn.Module) -> "RegisteredTensors":
        """Return those of a model, given its copies: a forward may reach the tensors of each."""
        return RegisteredTensors(
            {
                _identity(tensor): name
                for module in modules
                for name, tensor in [*module.named_parameters(), *module.named_buffers()]
            }
        )

    def name_of(self, tensor: Tensor) -> str | None:
        """Return the name of a whole parameter or buffer, None for another tensor."""
        return self.names.get(_identity(tensor))

    def elsewhere(self, tensors: Iterable[Tensor], module: nn.Module) -> str | None:
        """Return the name of the first of some tensors that is registered, but not in a module; None if all are."""
        own = {memory_key(each) for each in [*module.parameters(), *module.buffers()]}
        names = (self.name_of(each) for each in tensors if memory_key(each) not in own)
        return next((name for name in names if name is not None), None)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    # A trace may hold the tensor, or another one with the same memory. Parts of it are not meant.
    strides = (tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else ()
    return (memory_key(tensor), tensor.dtype, tensor.shape, *strides)
