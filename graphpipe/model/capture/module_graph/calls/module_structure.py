"""What two modules must have in common so that calls of equal arguments return tensors of equal shapes."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.observed_attributes import attributes_observed
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
        names = {
            module: found
            for module in self.root.get_submodule(path).modules()
            if type(module) not in self._numbered and (found := _NUMBERS & vars(module).keys())
        }
        kinds = {module: type(module) for module in names}
        reads: set[type[nn.Module]] = set()
        with attributes_observed(names, lambda module, name: reads.add(kinds[module])):
            yield
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


_KNOWN_LENGTHS = (tuple.__len__, list.__len__)
"""Tuples of a library may refuse to tell their length."""


def _value(value: object) -> object:
    if isinstance(value, bool | int | float | str | type(None)):
        return type(value), value
    if isinstance(value, tuple | list) and type(value).__len__ in _KNOWN_LENGTHS and len(value) < 10:
        return type(value), *map(_value, value)
    if isinstance(value, Tensor):
        return value.shape, value.dtype, known_number(value)
    return id(value)
