"""Uses of tensors that leave no operator in a trace: another backward, and data that are replaced.

torch.export follows a forward. It writes down the forward of an `autograd.Function` and forgets its backward, forgets
hooks, and does not see what is done to `tensor.data`.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from graphpipe.model.torch_private import FunctionContext


def _ignore(path: str) -> None:
    del path


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorUse:
    """What to do when the code that runs uses a tensor in such a way."""

    own_backward: Callable[[str], None]
    """Takes what gives a tensor another backward: the name of an `autograd.Function`, or of an attribute of tensors."""
    new_data: Callable[[Tensor], None]
    """Takes a tensor whose `data` are about to be replaced."""
    new_parameter: Callable[[nn.Module, str], None]
    """Takes a module, and the name of a parameter that is about to be replaced in it."""
    other_weights: Callable[[str], None] = _ignore
    """Takes the path of a submodule that is called with other weights than its own."""


_USE: ContextVar[TensorUse | None] = ContextVar("what to do with uses that leave no operator", default=None)
_OWN: Any = Tensor.__base__
"""Has the attributes of tensors as torch defines them."""
_FOR_USERS = ("torch.autograd.graph", "torch.nn.utils.convert_parameters")
"""Modules of torch whose functions set hooks, or replace data (`vector_to_parameters`), for the user."""
_STATELESS, _TRACING = "torch.nn.utils.stateless", ("torch.export.", "torch._functorch.", "torch._export.")
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")


@contextmanager
def using_tensors(use: TensorUse | None) -> Generator[None]:
    """While inside, and inside `watched_tensors`, uses of tensors are told. None: they are not told."""
    token = _USE.set(use)
    try:
        yield
    finally:
        _USE.reset(token)


def tell_call(path: str) -> None:
    """Tell of a call of a submodule, if `torch.func.functional_call` has put other weights in the place of its own."""
    use, frame = _USE.get(), sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while use is not None and frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == _STATELESS and frame.f_code.co_name == "_functional_call":
            use.other_weights(path)
        if module.startswith(_TRACING):
            return
        frame = frame.f_back


@contextmanager
def watched_tensors() -> Generator[None]:
    """While inside, uses of tensors can be told (see `using_tensors`).

    Where they are, code outside of torch reads `data` as `detach()`, so that a trace sees writes into it. Such code
    also finds that tensors require a gradient. They do in training, although a traced call hides its parameters.
    """
    kind: Any = Tensor
    modules: Any = nn.Module
    hooking_class: Any = saved_tensors_hooks
    hooks = {name: getattr(Tensor, name) for name in _HOOKS}
    registered, enter_hooks = nn.Module.register_parameter, saved_tensors_hooks.__enter__

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:  # as torch names them
        if (use := _USE.get()) is not None:
            use.new_parameter(self, name)
        registered(self, name, param)

    def enter(hooks: saved_tensors_hooks) -> None:
        kind = type(hooks)
        # Torch's own ones, such as `save_on_cpu` and those of checkpoints, give back what was saved.
        of_torch = kind.__module__.partition(".")[0] == "torch" and kind is not saved_tensors_hooks
        if (use := _USE.get()) is not None and not of_torch and _asked_by_user():
            use.own_backward(kind.__name__)
        enter_hooks(hooks)

    FunctionContext.__init__ = _begin
    hooking_class.__enter__ = enter
    modules.register_parameter = register_parameter
    for name, register in hooks.items():
        setattr(kind, name, _hooking(name, register))
    kind.grad_fn, kind.data = property(_grad_fn), property(_data, _set_data)
    kind.requires_grad = property(_requires_grad, _set_requires_grad)
    try:
        yield
    finally:
        del FunctionContext.__init__
        hooking_class.__enter__ = enter_hooks
        modules.register_parameter = registered
        for name, register in hooks.items():
            setattr(kind, name, register)
        del kind.grad_fn, kind.data, kind.requires_grad


def _begin(context: Any) -> None:
    use, function = _USE.get(), context._forward_cls
    if use is not None and torch.is_grad_enabled() and not _is_private_of_torch(function):
        use.own_backward(function.__name__)


def _is_private_of_torch(function: Any) -> bool:
    # Such as the one that keeps the inputs of a checkpoint that is not reentrant, up to torch 2.12.
    package, *parts = (*function.__module__.split("."), function.__name__)
    return package == "torch" and any(part.startswith("_") for part in parts)


def _hooking(name: str, register: Callable[..., Any]) -> Callable[..., Any]:
    def hooking(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if (use := _USE.get()) is None:
            return register(tensor, *args, **kwargs)
        use.own_backward(name)
        return RemovableHandle(OrderedDict())  # the tensor may not require a gradient here

    return hooking


def _grad_fn(tensor: Any) -> Any:
    if (use := _USE.get()) is not None and _asked_by_user():
        use.own_backward("grad_fn")
    return _OWN.grad_fn.__get__(tensor)


def _data(tensor: Any) -> Any:
    return tensor.detach() if _USE.get() is not None and _asked_by_user() else _OWN.data.__get__(tensor)


def _set_data(tensor: Any, new: Tensor) -> None:
    if (use := _USE.get()) is not None and _asked_by_user():
        use.new_data(tensor)
    _OWN.data.__set__(tensor, new)


def _requires_grad(tensor: Any) -> bool:
    known: bool = _OWN.requires_grad.__get__(tensor)
    if known or _USE.get() is None or isinstance(tensor, nn.Parameter) or not _asked_by_user():
        return known
    return torch.is_grad_enabled() and tensor.is_floating_point()


def _set_requires_grad(tensor: Any, required: bool) -> None:
    _OWN.requires_grad.__set__(tensor, required)


def _asked_by_user() -> bool:
    # Whether the code that asks for an attribute is not torch's own, or sets hooks of several tensors for the user.
    asking = sys._getframe(2).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
    return asking.partition(".")[0] not in ("torch", "graphpipe") or asking in _FOR_USERS
