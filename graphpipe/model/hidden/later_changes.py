"""What a user changes in a model after a pipeline was built, which the pipeline does not follow.

It holds the weights and layers that it was built with. A forward that it has followed is not called again: its hooks,
its plain values and its functions are those of that time. Looking takes a quarter of a microsecond for each submodule,
because only identities are compared, and by functions that are written in C.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import starmap
from operator import attrgetter, getitem, is_, methodcaller
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.hidden.attribute_uses import attribute_uses
from graphpipe.model.recorders import is_recorder
from graphpipe.model.torch_private import COMPILED, HOOK_TABLES, HOOKS_OF_TENSOR, OWN_TABLES

_DTYPE: Callable[[Tensor], torch.dtype] = attrgetter("dtype")
_TRAINED: Callable[[Tensor], bool] = attrgetter("requires_grad")
_FORWARD: Callable[[dict[str, Any]], object] = methodcaller("get", "forward")
_PLAIN = (bool, int, float, str, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_REMEDY = "Capture the model and plan again, and build a new pipeline."


@final
class LaterChanges:
    """Finds what was changed in a model since this was made.

    Args:
        model: of the pipeline.
        called: the submodules that the pipeline calls itself, hooks and all, with those inside them.
    """

    def __init__(self, model: nn.Module, called: Collection[nn.Module]) -> None:
        known = {id(each) for each in called}
        self._layers, self._followed = _Layers.of(model, known), _Followed.of(model, known)
        self._weights = _Weights.of(model)

    def check(self) -> None:
        """Check that nothing was changed.

        Raises:
            InvalidInput: something was. The message names it.
        """
        found = self._weights.changed() or self._layers.changed() or self._followed.changed()
        if found:
            raise InvalidInput(f"{found} after the pipeline was built", where="step", remedy=_REMEDY)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The submodules and parameters by their places, and the buffers of forwards that are not called again."""

    tables: list[dict[str, Any]]
    """The dictionaries of all modules in which they are."""
    paths: list[str]
    """Of the module of each dictionary."""
    names: list[tuple[str, ...]]
    """In each dictionary."""
    sizes: list[int]
    """The number of them."""
    places: list[tuple[dict[str, Any], str]]
    """The dictionary and the name of each that has data on this rank."""
    held: list[object]
    """What was there."""

    @staticmethod
    def of(model: nn.Module, called: Collection[int]) -> "_Layers":
        named = [
            (path, table)
            for path, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # which has no such dictionaries
            for table in OWN_TABLES(module)[: 2 if id(module) in called else 3]
        ]
        places = [(table, name) for _, table in named for name, each in table.items() if _is_here(each)]
        return _Layers(
            tables=[table for _, table in named],
            paths=[path for path, _ in named],
            names=[tuple(table) for _, table in named],
            sizes=[len(table) for _, table in named],
            places=places,
            held=[table[name] for table, name in places],
        )

    def changed(self) -> str:
        """Return what was added, removed or replaced."""
        try:
            same = all(map(is_, starmap(getitem, self.places), self.held))
            if same and list(map(len, self.tables)) == self.sizes:
                return ""
        except KeyError:
            pass
        before = {(id(table), name): each for (table, name), each in zip(self.places, self.held, strict=True)}
        for table, path, names in zip(self.tables, self.paths, self.names, strict=True):
            for name in dict.fromkeys((*names, *table)):
                was, now = before.get((id(table), name)), table.get(name)
                if name not in table:
                    return f"'{_joined(path, name)}' was removed"
                if name not in names:
                    return f"'{_joined(path, name)}' was added"
                if was is not None and was is not now:
                    return f"'{_joined(path, name)}' was replaced"
        return ""


@dataclass(frozen=True, slots=True)
class _Weights:
    """What parameters are, beside their values."""

    names: list[str]
    parameters: list[nn.Parameter]
    dtypes: list[torch.dtype]
    frozen: list[nn.Parameter]
    """Those that need no gradient, for which there is no optimizer."""
    without_hooks: list[nn.Parameter]

    @staticmethod
    def of(model: nn.Module) -> "_Weights":
        named = dict(model.named_parameters())
        parameters = [*named.values()]
        return _Weights(
            names=[*named],
            parameters=parameters,
            dtypes=[*map(_DTYPE, parameters)],
            frozen=[each for each in parameters if not each.requires_grad],
            without_hooks=[each for each in parameters if not any(HOOKS_OF_TENSOR(each))],
        )

    def changed(self) -> str:
        """Return which weight was unfrozen, got another dtype, or a hook on its gradient."""
        if any(map(_TRAINED, self.frozen)):
            return f"'{self._name(next(filter(_TRAINED, self.frozen)))}' was unfrozen"
        if list(map(_DTYPE, self.parameters)) != self.dtypes:
            for name, each, dtype in zip(self.names, self.parameters, self.dtypes, strict=True):
                if each.dtype != dtype:
                    return f"'{name}' was changed from {dtype} to {each.dtype}"
        if any(map(any, map(HOOKS_OF_TENSOR, self.without_hooks))):
            hooked = next(each for each in self.without_hooks if any(HOOKS_OF_TENSOR(each)))
            return f"'{self._name(hooked)}' got a hook on its gradient"
        return ""

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, each in zip(self.names, self.parameters, strict=True) if each is parameter)


@dataclass(frozen=True, slots=True)
class _Followed:
    """The modules whose forward is not called again, and all modules that may be compiled."""

    modules: list[nn.Module]
    compiled: list[object]
    paths: list[str]
    """Of the modules whose forward is not called."""
    hooks: list[dict[int, Callable[..., Any]]]
    """The dictionaries of their hooks, four for each of them."""
    keys: list[tuple[int, ...]]
    """Of the hooks."""
    own: list[dict[str, Any]]
    """Their attributes."""
    forwards: list[object]
    """The forwards among these, which stand for those of their classes."""
    places: list[tuple[dict[str, Any], str]]
    """The plain values and functions that their forwards read: attributes, and attributes of these."""
    labels: list[str]
    """The name of each of these."""
    held: list[Any]

    @staticmethod
    def of(model: nn.Module, called: Collection[int]) -> "_Followed":
        modules = dict(model.named_modules())
        followed = {path: each for path, each in modules.items() if id(each) not in called}
        hooks = [table for each in followed.values() for table in HOOK_TABLES(each)]
        read = {_joined(path, name): place for path, each in followed.items() for name, place in _read(each)}
        return _Followed(
            modules=[*modules.values()],
            compiled=[*map(COMPILED, modules.values())],
            paths=[*followed],
            hooks=hooks,
            keys=[*map(tuple, hooks)],
            own=[vars(each) for each in followed.values()],
            forwards=[vars(each).get("forward") for each in followed.values()],
            places=[*read.values()],
            labels=[*read],
            held=[copy.deepcopy(own[name]) for own, name in read.values()],
        )

    def changed(self) -> str:
        """Return which module got a hook, was compiled, or has another value of an attribute that its forward reads."""
        if list(map(tuple, self.hooks)) != self.keys:
            for at, (table, keys) in enumerate(zip(self.hooks, self.keys, strict=True)):
                known = table.keys() | {*keys}
                if any(key not in table or (key not in keys and not is_recorder(table[key])) for key in known):
                    return f"a hook of {_named(self.paths[at // 4])} was added or removed"
        if list(map(COMPILED, self.modules)) != self.compiled:
            return "the model or a submodule was compiled"
        if list(map(_FORWARD, self.own)) != self.forwards:
            return "the forward of the model, or of a submodule, was replaced"
        try:
            if list(starmap(getitem, self.places)) == self.held:
                return ""
        except KeyError:
            return "an attribute that the forward of the model reads was removed"
        at = next(n for n, (own, name) in enumerate(self.places) if own[name] != self.held[n])
        (own, name), label = self.places[at], self.labels[at]
        return f"'{label}', which the forward reads, was changed from {_said(self.held[at])} to {_said(own[name])}"


def _read(module: nn.Module) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    # The plain attributes that the forward of a module names, but for the mode, which has its own rules; and those of
    # objects that it names, such as a configuration. What the forward sets itself is no change by the user.
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names = {*code.co_names} - {"training"} - attribute_uses(type(module)).stored if code is not None else set[str]()
    for name in sorted(names & vars(module).keys()):
        value: object = vars(module)[name]
        if _is_plain(value):
            yield name, (vars(module), name)
        elif not isinstance(value, Tensor | nn.Module | type) and hasattr(value, "__dict__"):
            held = vars(value)
            yield from (
                (f"{name}.{inner}", (held, inner)) for inner in sorted(names & held.keys()) if _is_plain(held[inner])
            )


def _is_plain(value: Any) -> bool:
    # A number, a text or a function, or a list or dict of these.
    if isinstance(value, dict):
        return all(map(_is_plain, cast("dict[object, object]", value).values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, cast("Collection[object]", value)))
    return isinstance(value, (*_PLAIN, *_FUNCTIONS))


def _said(value: object) -> str:
    return getattr(value, "__name__", None) or repr(value)


def _is_here(each: object) -> bool:
    # Another rank's weights have no data here, and get memory when the whole model is shared.
    return each is not None and not (isinstance(each, Tensor) and each.is_meta)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(path: str) -> str:
    return f"'{path}'" if path else "the model"
