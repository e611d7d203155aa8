"""The values that a model holds, written in a form that is equal only if the values are."""

import enum
import hashlib
import logging
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import PurePath
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from graphpipe.model.fake_copy import number_buffers
from graphpipe.model.function_caches import content
from graphpipe.model.torch_private import own_buffers

MOST_VALUES = 500_000
_MOST_BYTES = 2**26
"""Contents of larger tensors and arrays are not read."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, PurePath)
_TORCH = (torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic)
_ORDERED, _UNORDERED, _BASES = (list, tuple, deque), (set, frozenset), (object, OrderedDict)
_SCALARS = (str, bytes, int, float)
"""Types of C whose contents are read: sequences, sets, and those that have nothing to add to what they derive from."""


_CACHED = type(cache(lambda: None))
_POINTER = 8
"""Bytes."""


class InDoubt(Exception):
    """A value has no form that is sure to tell it from every other value."""


class ValueForms:
    """Makes the forms of values; a value that was met before is written as its number.

    Args:
        users: names of the user's own Python modules. What a class of theirs holds is part of its form, because a
            program can set it.
    """

    def __init__(self, users: Collection[str] = ()) -> None:
        self._users = users
        self.modules: set[str] = set()
        """Names of the Python modules that define the classes and functions that were met."""
        self._named: set[type] = set()
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # an id is unique only while its object is alive

    def form(self, value: object) -> object:
        """Return the form of a value: lists of texts and numbers.

        Raises:
            InDoubt: the value has a state that Python does not show, or there are too many values.
        """
        if isinstance(value, _PLAIN) and type(value).__module__ in ("builtins", "pathlib"):
            return [type(value).__name__, repr(value)]
        if isinstance(value, _TORCH):
            return [type(value).__name__, repr(value)]
        if id(value) in self._seen:
            return self._seen[id(value)]
        if len(self._seen) >= MOST_VALUES:
            raise InDoubt("too many values")
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return self._new(value)

    def _new(self, value: Any) -> object:
        match value:
            case enum.Enum():
                return ["enum", self._kind(value), value.name]
            case types.ModuleType():
                self.modules.add(value.__name__)
                return ["module", value.__name__]
            case logging.Logger():
                return ["logger", value.name]
            case type():
                return ["class", *(self._name(base) for base in value.__mro__)]
            case types.FunctionType():
                return ["function", self._function(value)]
            case types.MethodType():
                return ["method", self.form(value.__func__), self.form(value.__self__)]
            case types.BuiltinFunctionType() | types.MethodDescriptorType() | types.WrapperDescriptorType():
                return ["builtin", str(value.__qualname__), self.form(getattr(value, "__self__", None))]
            case partial():
                return ["partial", self.form(value.func), self.form(value.args), self.form(value.keywords)]
            case property():
                return ["property", *(self.form(accessor) for accessor in (value.fget, value.fset, value.fdel))]
            case staticmethod() | classmethod():
                return [type(value).__name__, self.form(value.__func__)]
            case _ if isinstance(value, _CACHED):
                return ["cached", self.form(value.__wrapped__)]
            case weakref.ReferenceType() if type(value) is weakref.ReferenceType:
                return ["weak", self.form(value()), self.form(value.__callback__)]  # to the weights of an nn.GRU
            case types.UnionType() | types.GenericAlias() | TypeVar():
                return ["type", repr(value)]
            case types.MappingProxyType():
                return ["mapping", self._items(cast("Mapping[Any, Any]", value))]
            case Tensor():
                return _tensor(value, contents=not isinstance(value, nn.Parameter))
            case np.ndarray():
                return ["array", str(value.dtype), list(value.shape), _digest(value)]
            case nn.Module():
                return ["model", self._kind(value), self._module(value)]
            case _:
                return [self._kind(value), *self._instance(value)]

    def _module(self, module: nn.Module) -> object:
        # Parameters and most buffers have no data while a model is captured, so their contents do not count.
        numbers = number_buffers(module)
        own = {name: item for name, item in vars(module).items() if name != "_buffers"}
        buffers = [
            [name, _tensor(buffer, contents=name in numbers) if isinstance(buffer, Tensor) else None]
            for name, buffer in own_buffers(module).items()
        ]
        return [self._items(own), buffers]

    def _instance(self, value: Any) -> list[object]:
        parts: list[object] = []
        for base in type(value).__mro__:
            if base is dict:
                parts.append(self._items(value))
            elif base in _ORDERED or base in _UNORDERED:
                parts.append(self._sequence(value, ordered=base in _ORDERED))
            elif base in _SCALARS:
                parts.append(base.__repr__(value))
            elif base not in _BASES and not _shows_its_state(base):
                raise InDoubt(f"a {base.__module__}.{base.__qualname__}")
            parts += [
                [name, self.form(getattr(value, name))]
                for name in _slots(base)
                if name not in ("__dict__", "__weakref__") and hasattr(value, name)
            ]
        if type(type(value)).__module__.startswith("pybind11") or type(value).__module__.startswith("torch._C"):
            raise InDoubt(f"a {type(value).__qualname__}")
        return [*parts, self._items(getattr(value, "__dict__", {}))]

    def _items(self, items: Mapping[Any, Any]) -> object:
        return [[self.form(key), self.form(item)] for key, item in items.items()]

    def _sequence(self, items: Any, *, ordered: bool) -> object:
        forms = [self.form(item) for item in items]
        return forms if ordered else sorted(forms, key=repr)

    def _kind(self, value: object) -> object:
        return [self._name(base) for base in type(value).__mro__]

    def _name(self, kind: type) -> object:
        # With what it holds, for a class of the user and for a class inside a function, whose variables it may use.
        self.modules.add(kind.__module__)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind in self._named or not ("<locals>" in kind.__qualname__ or kind.__module__ in self._users):
            return name
        self._named.add(kind)
        members = {key: item for key, item in vars(kind).items() if _counts(key, item)}
        return [name, self._items(members)]

    def _function(self, function: types.FunctionType) -> object:
        self.modules.add(function.__module__)
        cells = [content(cell) for cell in function.__closure__ or ()]
        return [
            f"{function.__module__}.{function.__qualname__}",
            _code(function.__code__),
            *(self.form(part) for part in (function.__defaults__, function.__kwdefaults__, cells)),
            self._items(self._globals(function)),
        ]

    def _globals(self, function: types.FunctionType) -> dict[str, object]:
        # What a function of the user's reads in its module, such as another function.
        if function.__module__ not in self._users:
            return {}
        names = sorted(_names(function.__code__))
        return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _shows_its_state(kind: type) -> bool:
    # The instances of a class statement hold attributes and slots. Those of a type of C have more bytes than that.
    base = kind.__base__
    assert base is not None
    return kind.__basicsize__ <= base.__basicsize__ + _POINTER * (len(_slots(kind)) + 2)


def _counts(name: str, member: object) -> bool:
    described = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType) or name == "_abc_impl"
    special = name.startswith("__") and name.endswith("__")
    return not described and (not special or isinstance(member, types.FunctionType | property))


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _code(code: types.CodeType) -> object:
    constants = [_code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames), list(code.co_freevars)]


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _tensor(tensor: Tensor, *, contents: bool) -> object:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        raise InDoubt(f"a {type(tensor).__qualname__}")
    form = [str(tensor.dtype), str(tensor.device), list(tensor.shape), list(tensor.stride()), tensor.requires_grad]
    if contents and tensor.device.type != "meta":
        form.append(_digest(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return ["tensor", isinstance(tensor, nn.Parameter), *form]


def _digest(array: Any) -> str:
    if array.nbytes > _MOST_BYTES or array.dtype.hasobject:
        raise InDoubt(f"an array of {array.nbytes} bytes")
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
