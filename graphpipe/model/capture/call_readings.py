"""Readings of calls that equal an earlier call, without running them: layers of one kind are measured once."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.model.capture.module_graph.calls.module_structure import Structures
from graphpipe.model.capture.reading import Reading
from graphpipe.model.torch_private import TreeSpec, flatten, memory_key, non_leaf_alias, unflatten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def empty(self) -> Tensor:
        """Return a tensor without data, which a following call may write into."""
        found = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")
        return non_leaf_alias(found.requires_grad_()) if self.requires_grad else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    # A reading in which memory has places instead of keys: arguments and outputs by position, the rest by key.
    node: fx.Node
    reading: Reading
    outputs: list[Any]
    spec: TreeSpec
    places: Mapping[int, tuple[str, int]]


@dataclass(slots=True, kw_only=True)
class CallReadings:
    """The readings of the calls of one run of a module graph."""

    module: nn.Module
    outside: set[int]
    """Keys of the memory of parameters, buffers and model inputs."""
    structures: Structures
    """Of the module's submodules."""
    _known: dict[Hashable, _Known] = field(default_factory=dict[Hashable, _Known])
    _alive: list[object] = field(default_factory=list[object])
    _invented: Any = field(default_factory=lambda: count(-1, -1))

    def read(
        self, node: fx.Node, arguments: tuple[Any, Any], run: Callable[[], tuple[Any, Reading]]
    ) -> tuple[Any, Reading]:
        """Return the value and the reading of a call of a submodule, by `run` unless an equal call is known."""
        path = str(node.target)
        leaves, spec = flatten(arguments)
        keys = [memory_key(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        shared = tuple(keys.index(key) for key in keys)
        rest = (str(spec), shared, *map(self._key, leaves))
        if (key := (self.structures.of(path), *rest)) in self._known:
            return self._again(self._known[key], keys)
        with self.structures.observed(path):
            value, reading = run()
        self._alive += leaves
        writes = any("written_by" in each.meta for each in node.all_input_nodes)
        known = None if writes else _remember(node, value, reading, keys)
        if known is not None:
            self._known[(self.structures.of(path), *rest)] = known
        return value, reading

    def _key(self, leaf: Any) -> Hashable:
        if isinstance(leaf, Tensor):
            outside = memory_key(leaf) in self.outside
            return leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, outside
        return (type(leaf), leaf) if isinstance(leaf, bool | int | float | str | type(None)) else id(leaf)

    def _again(self, known: _Known, arguments: Sequence[int]) -> tuple[Any, Reading]:
        made = [leaf.empty() if isinstance(leaf, _Output) else leaf for leaf in known.outputs]
        outputs = [memory_key(leaf) for leaf in made if isinstance(leaf, Tensor)]
        self._alive += made
        fresh: dict[int, int] = {}

        def place(key: int) -> int:
            kind, position = known.places.get(key, ("inside", 0))
            if kind == "inside":
                return fresh.setdefault(key, next(self._invented))
            return arguments[position] if kind == "argument" else outputs[position]

        reading = known.reading.placed(place)
        reading.repeats = known.node
        return unflatten(made, known.spec), reading


def _remember(node: fx.Node, value: Any, reading: Reading, arguments: Sequence[int]) -> _Known | None:
    # None if outputs share memory with each other or with arguments.
    leaves, spec = flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    outputs = [memory_key(tensor) for tensor in tensors]
    if len({*outputs, *arguments}) < len(outputs) + len(set(arguments)):
        return None
    places = {key: ("argument", position) for position, key in enumerate(arguments)}
    places |= {key: ("output", position) for position, key in enumerate(outputs)}
    forms = [
        _Output(shape=tuple(leaf.shape), strides=leaf.stride(), dtype=leaf.dtype, requires_grad=leaf.requires_grad)
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    ]
    return _Known(node=node, reading=reading, outputs=forms, spec=spec, places=places)
