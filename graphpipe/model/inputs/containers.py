"""Containers of inputs, taken apart and built again: dicts, lists, tuples, dataclasses, and other mappings.

A class is found again by its name among the modules that this process has imported, so a plan from elsewhere imports
and runs nothing.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from graphpipe.errors import InvalidInput
from graphpipe.graph import InputPart

TENSOR, CONSTANT = "tensor", "constant"
"""Kinds of parts that are no containers."""
_PLAIN: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple"}
_CONSTANTS = (type(None), bool, int, float, str)
Path = tuple[str | int, ...]


def parts_of(path: Path, value: Any) -> Iterator[tuple[InputPart, Any]]:
    """Yield the parts of an input with their values, containers before what they hold.

    Args:
        path: of the input: the parameter of the forward.
        value: a tensor, a constant, or a container.

    Raises:
        InvalidInput: it holds something else.
    """
    if isinstance(value, Tensor):
        yield InputPart(path=path, kind=TENSOR), value
    elif type(value) in _CONSTANTS:
        yield InputPart(path=path, kind=CONSTANT, value=value), value
    else:
        held = _held(value, dotted(path))
        yield InputPart(path=path, kind=_kind(value, dotted(path))), value
        for key, part in held:
            yield from parts_of((*path, key), part)


def dotted(path: Path) -> str:
    """Return the name of the input at a path: `batch.texts.0`."""
    return ".".join(map(str, path))


def built(parts: Sequence[InputPart], tensors: Iterable[Any]) -> dict[str, Any]:
    """Return the arguments of a forward by name.

    Args:
        parts: of all inputs.
        tensors: those of the parts that are tensors, in order.

    Raises:
        InvalidInput: a class of a container is not imported here, or cannot be built from what it held.
    """
    rest, number = iter(tensors), 0
    arguments: dict[str, Any] = {}
    while number < len(parts):
        count = _count(parts, number)
        arguments[str(parts[number].path[0])] = _built(parts[number : number + count], rest)
        number += count
    return arguments


def is_container(value: object) -> bool:
    """True for a value that holds inputs."""
    return isinstance(value, Mapping | list | tuple) or (is_dataclass(value) and not isinstance(value, type))


def _count(parts: Sequence[InputPart], first: int) -> int:
    # How many parts a part and what it holds are.
    path = parts[first].path
    inside = (number for number in range(first + 1, len(parts)) if parts[number].path[: len(path)] != path)
    return next(inside, len(parts)) - first


def _built(parts: Sequence[InputPart], tensors: Iterator[Any]) -> Any:
    outer = parts[0]
    if outer.kind == TENSOR:
        return next(tensors)
    if outer.kind == CONSTANT:
        return outer.value
    held: dict[Any, Any] = {}
    number = 1
    while number < len(parts):
        count = _count(parts, number)
        held[parts[number].path[-1]] = _built(parts[number : number + count], tensors)
        number += count
    if outer.kind in _PLAIN.values():
        return held if outer.kind == "dict" else (list if outer.kind == "list" else tuple)(held.values())
    return _of_class(_class(outer), held, dotted(outer.path))


def _of_class(kind: type[Any], held: Mapping[Any, Any], name: str) -> Any:
    try:
        if issubclass(kind, tuple):
            return kind._make(held.values())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
        if issubclass(kind, Mapping):  # as of transformers: a dataclass with fields, or made from a dict
            return kind(**held) if is_dataclass(kind) else kind(held)  # pyright: ignore[reportCallIssue]
    except Exception as error:
        raise _unknown(kind, name) from error
    made: Any = object.__new__(kind)
    for key, value in held.items():  # without `__init__`, which may check or compute values
        object.__setattr__(made, key, value)
    return made


def _held(value: Any, name: str) -> list[tuple[str | int, Any]]:
    if isinstance(value, PackedSequence):
        raise InvalidInput(
            "is a PackedSequence, whose rows belong to several samples",
            where=f"input '{name}'",
            remedy="Give padded samples and their lengths, and let the forward call pack_padded_sequence.",
        )
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        if wrong := [key for key, _ in items if type(key) not in (str, int)]:
            what = f"has the key {wrong[0]!r}, which is neither a text nor a whole number"
            raise InvalidInput(what, where=f"input '{name}'", remedy="Name the key by a text.")
        return [*items]
    if isinstance(value, list | tuple):
        return [*enumerate(cast("Sequence[Any]", value))]
    if is_dataclass(value) and not isinstance(value, type):
        known = vars(value) if hasattr(value, "__dict__") else {each.name: None for each in fields(value)}
        return [(key, getattr(value, key)) for key in known]
    raise _unknown(type(value), name)


def _kind(value: Any, name: str) -> str:
    kind: type[Any] = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind]
    word = f"{kind.__module__}:{kind.__qualname__}"
    if _find(word) is not kind:
        raise InvalidInput(
            f"is a {kind.__qualname__}, which cannot be found by its name",
            where=f"input '{name}'",
            remedy="Define the class in a module, outside of functions, or give a dict.",
        )
    return word


def _class(part: InputPart) -> type[Any]:
    kind = _find(part.kind)
    known = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Mapping) or hasattr(kind, "_make"))
    if known:
        return kind
    raise InvalidInput(
        f"is a {part.kind.rpartition(':')[2]}, which this process has not imported",
        where=f"input '{dotted(part.path)}'",
        remedy=f"Import {part.kind.partition(':')[0]} first, or capture the model with a dict.",
    )


def _find(word: str) -> Any:
    module, _, names = word.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _unknown(kind: type[Any], name: str) -> InvalidInput:
    remedy = "Give a dict, a list, a tuple or a dataclass of tensors."
    if kind.__module__.partition(".")[0] == "numpy":
        remedy = "Make it a tensor with samples as its first dimension: torch.as_tensor(...)."
    return InvalidInput(f"input '{name}' is a {kind.__qualname__}, not a tensor", remedy=remedy)
