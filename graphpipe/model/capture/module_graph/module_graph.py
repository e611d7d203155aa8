"""A module taken apart: calls of its submodules joined by glue operators, in the order in which they ran."""

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import TreeSpec, is_lazy


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """What a module computes.

    `graph` holds placeholders (the model inputs), `get_attr` nodes (parameters, buffers, constants), `call_module`
    nodes (submodules kept whole) and `call_function` nodes (glue, without side effects). `meta["owner"]` of a call
    or glue is the submodule in whose forward it stands, "" for the model itself; `meta["written_by"]` of a copy is
    the submodule that the next call writes into it.
    """

    graph: fx.Graph
    inputs: Mapping[str, fx.Node]
    """The placeholders, by name of the model input."""
    output_spec: TreeSpec
    """How the model arranges what it returns; the leaves are the arguments of the output node."""
    constants: Mapping[str, Tensor]
    """Tensors written in the forwards, or plain attributes of a module, by target of their `get_attr` nodes."""


class CannotFollow(Exception):
    """A forward does something that glue operators cannot express; keeping its module whole is the way out.

    Args:
        path: the submodule, "" for the model itself.
        reason: what it does, to follow "the forward of ...".
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def sample_count(tensor: Tensor) -> int:
    """Return the number of samples of any tensor at hand; stands in a skeleton for every use of the batch size."""
    return tensor.shape[0]


def device_of(tensor: Tensor) -> torch.device:
    """Return the device of any tensor at hand; stands in a skeleton for every device written in a forward."""
    return tensor.device


def fake_twin(module: nn.Module, mode: AbstractContextManager[object], device: torch.device | str = "cpu") -> nn.Module:
    """Return a copy of `module` in training mode whose parameters and buffers are fake tensors of `mode` on `device`.

    Raises:
        InvalidInput: a lazy parameter without a shape, or a module that cannot be copied.
    """
    memo: dict[int, object] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            remedy = "Run the model once, so that its lazy modules know their shapes."
            raise InvalidInput(f"parameter '{name}' has no shape yet", where="capture", remedy=remedy)
        with mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            trainable = tensor.requires_grad
            memo[id(tensor)] = nn.Parameter(fake, trainable) if isinstance(tensor, nn.Parameter) else fake
    try:
        return copy.deepcopy(module, memo).train()
    except (TypeError, RuntimeError) as error:
        what = f"{type(module).__name__} cannot be copied: {str(error).splitlines()[0]}"
        raise InvalidInput(
            what, where="capture", remedy="Keep locks, handles and computed tensors out of it."
        ) from None
