"""What two modules must have in common so that calls of equal arguments return tensors of equal shapes."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from graphpipe.model.recorders import is_recorder
from graphpipe.model.torch_private import known_number

_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "idx", "index"})
"""Attributes that tell layers apart. Most layers only name themselves to a cache with them."""
_INSIDE = frozenset({*vars(nn.Module()), "to"})
"""Attributes of every module, and what `fake_copy` adds."""


class Structures:
    """Values that are equal for submodules of equal classes, attributes, and shapes of tensors, also inside.

    Objects that are neither modules, tensors nor plain values count as equal only if they are the same object. A
    module with hooks equals only itself. The number of a layer counts if a call of a layer of its class has read it.

    Args:
        root: the module whose submodules are compared.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._found: dict[str, object] = {}
        self._numbered: set[type[nn.Module]] = set()

    def of(self, path: str) -> object:
        """Return the structure of a submodule."""
        if path not in self._found:
            self._found[path] = self._structure(self.root.get_submodule(path))
        return self._found[path]

    @contextmanager
    def observed(self, path: str) -> Generator[None]:
        """While inside, see which numbers of layers a call of this submodule reads. `of` may change by this."""
        held = [(each, type(each)) for each in self.root.get_submodule(path).modules() if _NUMBERS & vars(each).keys()]
        reads: set[type[nn.Module]] = set()
        for module, kind in held:
            if kind not in self._numbered:
                module.__class__ = _observed(kind, _NUMBERS & vars(module).keys(), reads)
        try:
            yield
        finally:
            for module, kind in held:
                module.__class__ = kind
        if reads:
            self._numbered |= reads
            self._found.clear()

    def _structure(self, module: nn.Module) -> object:
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        hooks = [hook for name in _INSIDE if name.endswith("_hooks") for hook in vars(module)[name].values()]
        ignored = _INSIDE if type(module) in self._numbered else _INSIDE | _NUMBERS
        return (
            type(module) if all(map(is_recorder, hooks)) else id(module),
            tuple((name, _value(value)) for name, value in sorted(vars(module).items()) if name not in ignored),
            tuple((name, each.shape, each.dtype, each.requires_grad, known_number(each)) for name, each in tensors),
            tuple((name, self._structure(child)) for name, child in module.named_children()),
        )


def _value(value: object) -> object:
    if isinstance(value, bool | int | float | str | type(None)):
        return type(value), value
    if isinstance(value, tuple | list) and len(value) < 10:
        return type(value), *map(_value, value)
    if isinstance(value, Tensor):
        return value.shape, value.dtype, known_number(value)
    return id(value)


def _observed(kind: type[nn.Module], numbers: Collection[str], reads: set[type[nn.Module]]) -> type[nn.Module]:
    # A subclass that notes when one of the numbers is read.
    names: dict[str, Any] = {name: _number(name, kind, reads) for name in numbers}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **names})


def _number(name: str, kind: type[nn.Module], reads: set[type[nn.Module]]) -> property:
    def read(module: nn.Module) -> object:
        reads.add(kind)
        return vars(module)[name]

    def write(module: nn.Module, value: object) -> None:
        vars(module)[name] = value

    return property(read, write)
