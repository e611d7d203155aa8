"""A copy of a module whose tensors have shapes and no data."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphpipe.errors import InvalidInput
from graphpipe.model.kept_attributes import CONTAINERS, plain_attributes
from graphpipe.model.torch_private import flatten, know_number, outside_tracing, unsaved_buffers

_ASKS = ((nn.TransformerEncoder, "is_causal"), (nn.TransformerDecoder, "tgt_is_causal"))
"""Modules that compare the values of a mask with those of a causal one, unless they are told what it is."""


def fake_copy(module: nn.Module, mode: AbstractContextManager[object], device: torch.device | str = "cpu") -> nn.Module:
    """Return a copy of `module` in training mode whose parameters and buffers are fake tensors of `mode` on `device`.

    Single whole numbers in buffers that are in no checkpoint, or in plain attributes, keep their values: convolutions
    of codecs hold their strides so, and compute how much to pad with them.

    Raises:
        InvalidInput: a lazy parameter without a shape, or a module that cannot be copied.
    """
    memo: dict[int, Any] = {}
    tensors = [*module.named_parameters(), *module.named_buffers()]  # those of a scripted module exist only here
    for name, tensor in tensors:
        if is_lazy(tensor):
            remedy = "Run the model once, so that its lazy modules get their shapes."
            raise InvalidInput(f"parameter '{name}' has no shape yet", where="capture", remedy=remedy)
        with mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            trainable = tensor.requires_grad
            memo[id(tensor)] = nn.Parameter(fake, trainable) if isinstance(tensor, nn.Parameter) else fake
    for part in module.modules():
        for number in _number_attributes(part).values():
            with mode:
                memo[id(number)] = torch.empty(number.shape, dtype=number.dtype, device=device)
        for number in [*number_buffers(part).values(), *_number_attributes(part).values()]:
            know_number(memo[id(number)], number)
    scripted = [part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    memo |= {id(part): Scripted(part, mode, device) for part in scripted if part is not module}
    memo |= uncopied(module)
    try:
        copied = copy.deepcopy(module, memo).train()
    except (TypeError, RuntimeError) as error:
        what = f"{type(module).__name__} cannot be copied: {str(error).splitlines()[0]}"
        remedy = "Remove locks, handles and computed tensors from its attributes."
        raise InvalidInput(what, where="capture", remedy=remedy) from None
    for path, part in copied.named_modules():
        part.to = partial(_already_there, part, path)  # torch cannot convert the parameters of a traced forward
        for kind, argument in _ASKS:
            if isinstance(part, kind):
                asking: Any = part.forward
                vars(part)["forward"] = update_wrapper(partial(_not_asking, asking, argument), asking)
    return copied


class Scripted(nn.Module):
    """Stands for a scripted module, with fake tensors for its parameters and buffers. It runs on real tensors only.

    Each call runs a copy, so that the buffers of the module stay as they are.

    Args:
        module: a scripted module.
        mode: of fake tensors.
        device: of its tensors.
    """

    def __init__(self, module: nn.Module, mode: AbstractContextManager[object], device: torch.device | str) -> None:
        super().__init__()
        self._held = (module,)  # not a submodule
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            with mode:
                fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
                if isinstance(tensor, nn.Parameter) or tensor.requires_grad:
                    self.register_parameter(name, nn.Parameter(fake, tensor.requires_grad))
                else:
                    self.register_buffer(name, fake)
        for name, child in module.named_children():
            self.add_module(name, Scripted(child, mode, device))

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call a copy of the scripted module.

        Raises:
            NotImplementedError: with fake tensors, of which it would run a part and leave them in its buffers.
        """
        if any(hasattr(each, "fake_mode") for each in flatten((args, kwargs))[0]):
            raise NotImplementedError("a scripted module does not run on tensors without data")
        with outside_tracing():
            apart = copy.deepcopy(self._held[0])
        return apart(*args, **kwargs)


def _not_asking(forward: Callable[..., object], argument: str, *args: object, **kwargs: object) -> object:
    # The layers get the mask itself, with the same result.
    return forward(*args, **{**kwargs, argument: kwargs.get(argument) or False})


def uncopied(module: nn.Module) -> dict[int, Tensor]:
    """Return what `copy.deepcopy` keeps, by identity: what an earlier forward computed, such as a pruned weight.

    Python cannot copy it, and a new forward computes it again.
    """
    return {id(each): each.detach() for each in computed_attributes(module)}


def computed_attributes(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that an earlier forward left in attributes, such as a recurrent state or a list of losses."""
    held = [value for part in module.modules() for value in plain_attributes(part).values()]
    seen = set[int]()  # a list may hold itself
    while held:
        value = held.pop()
        if isinstance(value, Tensor):
            yield from () if value.is_leaf else (value,)
        elif isinstance(value, (*CONTAINERS, tuple)) and id(value) not in seen:
            seen.add(id(value))
            inside = cast("dict[object, object]", value).values() if isinstance(value, dict) else value
            held += iter(inside)  # A tuple of a library may refuse to tell its length.


def _already_there(module: nn.Module, path: str, *args: object, **kwargs: object) -> nn.Module:
    # `module.to(...)` in a forward, which must change nothing.
    asked = [argument.dtype if isinstance(argument, Tensor) else argument for argument in (*args, *kwargs.values())]
    (dtype,) = [dtype for dtype in asked if isinstance(dtype, torch.dtype)][:1] or (None,)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            what = f"a forward converts '{path}.{name}' from {tensor.dtype} to {dtype}"
            raise InvalidInput(what, where="capture", remedy=f"Convert it beforehand: model.{path}.to({dtype}).")
    return module


def number_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a module itself that are single whole numbers and in no checkpoint, such as a stride."""
    return _numbers(unsaved_buffers(module))


def _number_attributes(module: nn.Module) -> dict[str, Tensor]:
    return _numbers(vars(module))


def _numbers(held: Mapping[str, object]) -> dict[str, Tensor]:
    return {name: value for name, value in held.items() if isinstance(value, Tensor) and _is_number(value)}


def _is_number(tensor: Tensor) -> bool:
    # A single whole number with a value.
    return tensor.numel() == 1 and not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_meta)
