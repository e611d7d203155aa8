"""A model with values of its own for one step: what the step changes in it is undone afterwards."""

import operator
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.kept_attributes import scripted_kept
from graphpipe.model.torch_private import own_buffers
from graphpipe.run.device.fixed_draws import doubled


@contextmanager
def own_values(modules: Sequence[nn.Module], tensors: Sequence[Tensor], *, double: bool) -> Generator[None]:
    """While inside, modules hold copies of their parameters and buffers, and no gradients.

    The parameters stay the same objects, with their hooks, because optimizers, closures and hooks refer to them.

    Args:
        modules: the model, and the loss if it is a module.
        tensors: other leaves that the loss computes with.
        double: the copies of real and complex numbers are in double precision, which is then torch's default.
    """
    parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
    parameters = {id(each): each for module in modules for each in module.parameters()}
    leaves = [*(parameters | {id(each): each for each in tensors}).values()]
    held = [(each, each.data, each.grad, each.requires_grad) for each in leaves]
    attributes = [(vars(part), _copied(vars(part))) for part in parts]
    default, scripted = torch.get_default_dtype(), ExitStack()
    try:
        for module in modules:
            scripted.enter_context(scripted_kept(module))
        for each in leaves:
            each.grad = None
            each.data = _copy(each.data, double=double)
        copies: dict[int, Tensor] = {}
        for part in parts:
            for name, buffer in [*part.named_buffers(recurse=False, remove_duplicate=False)]:
                if id(buffer) not in copies:
                    copies[id(buffer)] = _copy(buffer.detach(), double=double)
                _hold(part, name, copies[id(buffer)])
        if double:
            torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for each, data, gradient, trained in held:
            each.data = data
            each.grad = gradient
            if each.requires_grad != trained:
                each.requires_grad_(trained)
        for now, before in attributes:
            _restore(now, before)
        scripted.close()


def _hold(module: nn.Module, name: str, buffer: Tensor) -> None:
    if isinstance(module, torch.jit.ScriptModule):  # which has its buffers outside of Python
        setattr(module, name, buffer)
    else:
        own_buffers(module)[name] = buffer


def _copy(tensor: Tensor, *, double: bool) -> Tensor:
    return tensor.to(doubled(tensor.dtype), copy=True) if double else tensor.clone()


def _copied(attributes: dict[str, Any]) -> dict[str, tuple[Any, dict[Any, Any] | None]]:
    # Dictionaries, such as those of a module's parameters and buffers, with their entries.
    return {name: (each, dict(each) if isinstance(each, dict) else None) for name, each in attributes.items()}


def _restore(now: dict[str, Any], before: dict[str, tuple[Any, dict[Any, Any] | None]]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, (value, entries) in before.items():
        now[name] = value
        if entries is not None and not _same_entries(value, entries):
            value.clear()
            value.update(entries)


def _same_entries(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    # Libraries have dictionaries that refuse to be changed, such as diffusers' configurations. These never differ.
    return len(now) == len(before) and all(map(operator.is_, now.values(), before.values())) and list(now) == [*before]
