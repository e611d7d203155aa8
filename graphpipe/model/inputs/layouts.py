"""The layout of inputs: which parameter of a forward gets what, and which tensors that is."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, cast

from torch import Tensor, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import InputLayout, InputPart
from graphpipe.model.inputs.containers import CONSTANT, TENSOR, built, dotted, is_container, parts_of

Inputs = Any
"""A tensor, a sequence with one entry for each parameter of the forward, or a mapping by the names of the parameters.
An entry is a tensor, a number, a text, None, or a container of these. A forward with one parameter may be given its
container itself."""

_PARAMETERS = inspect.Parameter
_NAMED = (_PARAMETERS.POSITIONAL_OR_KEYWORD, _PARAMETERS.KEYWORD_ONLY)
_IN_ORDER = (_PARAMETERS.POSITIONAL_OR_KEYWORD, _PARAMETERS.POSITIONAL_ONLY)


def read_layout(module: nn.Module, inputs: Inputs) -> InputLayout:
    """Return the layout of the inputs of `module`, in the order of its forward's parameters.

    Inputs that are given by name keep their names. Others get the names of the forward's parameters, or `input_0`,
    `input_1`, ... if it takes `*args`. A tensor in a container is named by its path: `batch.image`.

    Raises:
        InvalidInput: more inputs than the forward takes, a name that is not one of its parameters, or a value that is
            neither a tensor, a number, a text, None, nor a container of these.
    """
    declared = getattr(module, "input_names", None)
    if isinstance(declared, tuple):
        given = _arguments(cast("tuple[str, ...]", declared), inputs, nested=False)
    else:
        given = _by_parameter(module, inputs)
    found = [part for name, value in given.items() for part in parts_of((name,), value)]
    parts = tuple(part for part, _ in found)
    names = tuple(dotted(part.path) for part in parts if part.kind == TENSOR)
    _check_names(names)
    _check_lists([(part, value) for part, value in found if isinstance(value, list | tuple)], found)
    nested = any(part.kind != TENSOR for part in parts)
    return InputLayout(names=names, parts=parts if nested else ())


def name_inputs(layout: InputLayout | Sequence[str], inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors by model input name, in the order of a layout.

    Args:
        layout: of the model's inputs, or the names of inputs that are all tensors.
        inputs: with the layout of the example.

    Raises:
        InvalidInput: a missing, surplus or unknown input, a value that is not a tensor with samples as its first
            dimension, inputs that differ in their number of samples, or a value that is not that of the example.
    """
    known = layout if isinstance(layout, InputLayout) else InputLayout(names=tuple(layout))
    given = _arguments(known.arguments, inputs, nested=bool(known.parts))
    if known.parts:
        found = [each for name, value in given.items() for each in parts_of((name,), value)]
        _check_layout(known.parts, [part for part, _ in found])
        named: dict[str, Any] = {dotted(part.path): value for part, value in found if part.kind == TENSOR}
    else:
        named = given
    _check_samples(named)
    return named


def name_arguments(names: Sequence[str], inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of a forward by name, in the order of `names`.

    Raises:
        InvalidInput: as `name_inputs`; here a value may also be a number, a text, None, or a container.
    """
    given = _arguments(names, inputs, nested=False)
    found = [each for name, value in given.items() for each in parts_of((name,), value)]
    _check_samples({dotted(part.path): value for part, value in found if part.kind == TENSOR})
    return given


def nested_arguments(layout: InputLayout) -> list[str]:
    """Return the arguments of a forward that are containers."""
    return [str(part.path[0]) for part in layout.parts if len(part.path) == 1 and part.kind not in (TENSOR, CONSTANT)]


def found_inputs(layout: InputLayout, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a dict has of nested inputs, by name. It may lack some, and hold other things.

    Args:
        layout: of the inputs.
        given: the arguments of the forward by name, or what its only argument holds.

    Raises:
        InvalidInput: a value that is not a tensor is another one than in the example.
    """
    found: dict[str, Any] = {}
    whole = any(name in given for name in layout.arguments)
    for part in layout.parts:
        path = part.path if whole or len(layout.arguments) > 1 else part.path[1:]
        value: Any = given
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else _entry(value, key)
        if part.kind == TENSOR and path and value is not None:
            found[dotted(part.path)] = value
        elif part.kind == CONSTANT and value is not None:
            _check_layout([part], [each for each, _ in parts_of(part.path, value)])
    return found


def _entry(value: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return value[key] if isinstance(value, list | tuple) and key < len(cast("Sequence[Any]", value)) else None
    return getattr(value, key, None)


def with_containers(layout: InputLayout, named: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return inputs as a forward takes them, by name: the inverse of `name_inputs`."""
    return built(layout.parts, [named[name] for name in layout.names]) if layout.parts else dict(named)


def taking_tensors(forward: Callable[..., Any], parts: Sequence[InputPart], *, by_name: bool) -> Callable[..., Any]:
    """Return a forward that takes the tensors of its inputs in order, and builds the containers from them.

    Args:
        forward: of a model.
        parts: of its inputs.
        by_name: whether the forward takes its arguments by name, or else in order.
    """

    @wraps(forward)
    def taken(*tensors: Any) -> Any:
        arguments = built(parts, tensors)
        return forward(**arguments) if by_name else forward(*arguments.values())

    taken.__signature__ = inspect.Signature([_PARAMETERS("tensors", _PARAMETERS.VAR_POSITIONAL)])  # pyright: ignore[reportAttributeAccessIssue]
    return taken


def _by_parameter(module: nn.Module, inputs: Any) -> dict[str, Any]:
    # What each parameter of the forward gets.
    parameters = list(inspect.signature(module.forward).parameters.values())
    kinds = {each.kind for each in parameters}
    named = [each.name for each in parameters if each.kind in _NAMED]
    ordered = [each for each in parameters if each.kind in _IN_ORDER]
    if len([each for each in ordered if each.default is each.empty]) == 1 and not kinds & {_PARAMETERS.VAR_POSITIONAL}:
        starred = _PARAMETERS.VAR_KEYWORD in kinds
        if _is_one_input(inputs, ordered[0], [*named], count=len(ordered), starred=starred):
            return {ordered[0].name: inputs}
    if isinstance(inputs, Mapping):
        given = cast("Mapping[str, Any]", inputs)
        # If all names are unknown, the inputs count as given in order: nn.Sequential names its parameter `input`.
        unknown = [name for name in given if name not in named]
        if unknown and len(unknown) < len(given) and _PARAMETERS.VAR_KEYWORD not in kinds:
            what = f"the forward of {type(module).__name__} takes no input '{unknown[0]}'"
            raise InvalidInput(what, remedy=nearest(unknown[0], named))
        return {
            name: given[name]
            for name in sorted(given, key=lambda name: named.index(name) if name in named else len(named))
        }
    values = _in_order(inputs)
    positional = [each.name for each in ordered]
    if _PARAMETERS.VAR_POSITIONAL in kinds:
        positional += [f"input_{position}" for position in range(len(positional), len(values))]
    if len(values) > len(positional):
        raise InvalidInput(
            f"{len(values)} inputs were given, the forward of {type(module).__name__} takes {len(positional)}"
        )
    return dict(zip(positional, values, strict=False))


def _is_one_input(
    inputs: Any, parameter: inspect.Parameter, named: Sequence[str], *, count: int, starred: bool
) -> bool:
    # Whether the given container is the only input of a forward with one parameter, as in model(batch).
    if isinstance(inputs, Mapping):
        values = [*cast("Mapping[Any, Any]", inputs).values()]
        if starred or any(name in named for name in cast("Mapping[Any, Any]", inputs)):
            return False
        return len(values) != 1 or not isinstance(values[0], Tensor) or _takes_a_mapping(parameter)
    if isinstance(inputs, list | tuple):
        return hasattr(inputs, "_fields") or len(cast("Sequence[Any]", inputs)) > count
    return not isinstance(inputs, Tensor) and is_container(inputs)


def _takes_a_mapping(parameter: inspect.Parameter) -> bool:
    words = str(parameter.annotation).lower()
    return any(word in words for word in ("dict", "mapping", "batchencoding"))


def _arguments(names: Sequence[str], inputs: Any, *, nested: bool) -> dict[str, Any]:
    # What each argument of the forward gets, in the order of their names. If one argument is nested, it may be given
    # without its name.
    if nested and len(names) == 1 and _is_the_only(inputs, names[0]):
        return {names[0]: inputs}
    if isinstance(inputs, Mapping):
        named = dict(cast("Mapping[str, Any]", inputs))
        for name in named:
            if name not in names:
                raise InvalidInput(f"the model takes no input '{name}'", remedy=nearest(str(name), list(names)))
    else:
        values = _in_order(inputs)
        if len(values) != len(names):
            raise InvalidInput(f"{len(values)} inputs were given, the model takes {len(names)}: {', '.join(names)}")
        named = dict(zip(names, values, strict=True))
    missing = [name for name in names if name not in named]
    if missing:
        what = f"input '{missing[0]}' is missing; the model takes {', '.join(names)}"
        raise InvalidInput(what, remedy="Give a tensor for each, or mend the name in the model.")
    return {name: named[name] for name in names}


def _is_the_only(inputs: Any, name: str) -> bool:
    if isinstance(inputs, Mapping):
        return name not in inputs
    if isinstance(inputs, list | tuple):
        return hasattr(inputs, "_fields") or len(cast("Sequence[Any]", inputs)) != 1
    return not isinstance(inputs, Tensor)


def _in_order(inputs: Any) -> list[Any]:
    if isinstance(inputs, Tensor):
        return [inputs]
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return [*cast("Sequence[Any]", inputs)]
    raise InvalidInput(
        f"the inputs are a {type(inputs).__name__}",
        remedy="Give a tensor, a tuple of tensors, or a dict of tensors by the names that the forward gives them.",
    )


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise InvalidInput("there is no tensor among the inputs", where="inputs")
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise InvalidInput(f"two inputs are named '{twice[0]}'", where="inputs", remedy="Leave dots out of their keys.")


def _check_lists(lists: Sequence[tuple[InputPart, Any]], found: Sequence[tuple[InputPart, Any]]) -> None:
    # A list of numbers or texts with one for each sample would be cut nowhere.
    samples = next((len(value) for part, value in found if part.kind == TENSOR and value.dim()), 0)
    for part, values in lists:
        if len(values) == samples and all(_is_constant(each) for each in values):
            raise InvalidInput(
                f"is a {part.kind} of {samples} values, as many as there are samples, and cannot be divided by samples",
                where=f"input '{dotted(part.path)}'",
                remedy="Make it a tensor with samples in front, and leave out what the forward does not read. If it is "
                "no list of samples, give an example with another number of samples.",
            )


def _is_constant(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def _check_layout(parts: Sequence[InputPart], given: Sequence[InputPart]) -> None:
    # Compares inputs with those of the example.
    known = {part.path: part for part in parts}
    found = {part.path: part for part in given}
    for path in [*found, *known]:
        example, here = known.get(path), found.get(path)
        if example is None or here is None or not _alike(example, here):
            raise InvalidInput(
                f"{_said(here)}, in the example {_said(example)}",
                where=f"input '{dotted(path)}'",
                remedy="Values that are not tensors, and containers, are those of the example that the model was "
                "captured with. Give a tensor with samples in front, or capture the model with such an input.",
            )


def _alike(one: InputPart, other: InputPart) -> bool:
    if CONSTANT in (one.kind, other.kind):
        same = one.value == other.value or (one.value != one.value and other.value != other.value)  # both are NaN
        return one.kind == other.kind and type(one.value) is type(other.value) and same
    return one.kind == other.kind or {one.kind, other.kind} == {"list", "tuple"}


def _said(part: InputPart | None) -> str:
    if part is None:
        return "it is missing"
    return f"it is {part.value!r}" if part.kind == CONSTANT else f"it is a {part.kind.rpartition(':')[2]}"


def _check_samples(named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"input '{name}' is a {type(tensor).__name__}, not a tensor")
        if tensor.dim() == 0:
            raise InvalidInput(f"input '{name}' is a single number", remedy="Its first dimension must be samples.")
    lengths = {name: tensor.shape[0] for name, tensor in named.items()}
    first = next(iter(lengths.values()), 0)
    if any(length != first for length in lengths.values()):
        counts = ", ".join(f"'{name}' has {length}" for name, length in lengths.items())
        what = f"inputs differ in their number of samples (first dimension): {counts}"
        remedy = (
            "Every input needs one row for each sample. A tensor that all samples share, such as a mask or positions, "
            "belongs into a buffer of a module around the model. Compute beforehand what depends on other inputs."
        )
        raise InvalidInput(what, remedy=remedy)
