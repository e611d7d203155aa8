"""Targets and arguments of a captured graph's nodes as JSON, and back."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.module_graph.module_graph import device_of, mode_dropout, sample_count, stand_in
from graphpipe.model.capture.module_graph.rebuild_containers import BuildContainer
from graphpipe.model.capture.module_graph.writes import copied, with_row, with_slice, written
from graphpipe.model.hidden.raising_branches import holds
from graphpipe.model.hidden.untraced_losses import ctc
from graphpipe.model.sample_rows import every_row
from graphpipe.model.torch_private import Operator, leaf, spec_from_json, spec_to_json

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        function.__name__: function
        for function in (sample_count, device_of, stand_in, mode_dropout, copied, written, with_slice, with_row, leaf)
    },
    **{f"operator.{name}": getattr(operator, name) for name in operator.__all__},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "pow", "sqrt")},
    **{f"torch.{name}": getattr(torch, name) for name in dir(torch) if name.startswith("sym_")},
    "torch.clone": torch.clone,
}
"""The Python functions that a captured graph may call, by name."""
_NAMES: dict[object, str] = {
    function: name for name, function in _FUNCTIONS.items() if not name.startswith("operator.__")
}
OWN_OPERATORS = (every_row, holds, ctc)
"""Operators of torch that are registered when their file is imported."""
_CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Types of torch's constants; a file names the constants as torch does."""


class NotWritable(Exception):
    """A captured graph calls a function, or holds a value, that has no form in JSON."""


def encode_target(node: fx.Node) -> Any:
    """Return the JSON form of what a node calls.

    Raises:
        NotWritable: the node calls something that is neither an operator of torch nor one of our functions.
    """
    target = node.target
    if node.op != "call_function":
        return target
    if isinstance(target, Operator):
        return {"operator": str(target)}
    if isinstance(target, BuildContainer):
        return {"container": _spec_json(target.spec)}
    if target in _NAMES:
        return {"function": _NAMES[target]}
    raise NotWritable(f"node '{node.name}' calls {target}")


def decode_target(op: str, target: Any, where: str) -> Any:
    """Return what a node calls, given its JSON form.

    Raises:
        InvalidInput: the file names something that a captured graph does not call.
    """
    match op, target:
        case ("placeholder" | "get_attr" | "call_module" | "output", str()):
            return target
        case ("call_method", "to"):
            return target
        case ("call_function", {"operator": str(name)}):
            return _operator(name, where)
        case ("call_function", {"container": str(text)}):
            return BuildContainer(spec_from_json(text))
        case ("call_function", {"function": str(name)}) if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        case _:
            raise InvalidInput(f"a node's {op} calls {target!r}, which a captured graph does not call", where=where)


def encode(value: Any) -> Any:
    """Return the JSON form of a node's arguments.

    Raises:
        NotWritable: an argument is neither a node, a number, a text, a constant of torch, nor a container of these.
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encode(item) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, float | torch.device):
        return {type(value).__name__: str(value)}
    for kind, constants in _CONSTANTS.items():
        if isinstance(value, constants):
            return {kind: str(value).removeprefix("torch.")}
    raise NotWritable(f"an argument is a {type(value).__name__}")


def decode(value: Any, nodes: Mapping[str, fx.Node], where: str) -> Any:
    """Return a node's arguments, given their JSON form.

    Args:
        value: the JSON form.
        nodes: the previous nodes, by name.
        where: the file, for errors.

    Raises:
        InvalidInput: the file holds another form, or names an unknown node or constant.
    """
    if isinstance(value, list):
        return [decode(item, nodes, where) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"node": str(name)} if name in nodes:
            return nodes[name]
        case {"tuple": list(items)}:
            return tuple(decode(item, nodes, where) for item in items)
        case {"dict": dict(items)}:
            return {key: decode(item, nodes, where) for key, item in items.items()}
        case {"slice": [start, stop, step]}:
            return slice(*(decode(item, nodes, where) for item in (start, stop, step)))
        case {"float": ("inf" | "-inf" | "nan") as text}:
            return float(text)
        case {"device": str(text)}:
            return torch.device(text)
        case _:
            return _constant(value, where)


def _constant(value: dict[str, Any], where: str) -> Any:
    for kind, constants in _CONSTANTS.items():
        constant = getattr(torch, str(value.get(kind)), None)
        if isinstance(constant, constants):
            return constant
    raise InvalidInput(f"an argument is {value!r}, which a captured graph does not hold", where=where)


def _operator(name: str, where: str) -> Operator:
    # Looking up an operator of torch does not run it.
    operator: Any = torch.ops
    try:
        for part in name.split("."):
            operator = getattr(operator, part)
    except (AttributeError, RuntimeError):
        operator = None
    if not isinstance(operator, Operator):
        raise InvalidInput(f"a node calls operator '{name}', which this torch does not have", where=where)
    return operator


def _spec_json(spec: Any) -> str:
    text = spec_to_json(spec)
    if text is None:
        raise NotWritable(f"a container is {spec}")
    return text
