"""Dataclass values to plain JSON objects ("bodies") and back, and their fingerprints."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from graphpipe.errors import InvalidInput, nearest

Value = TypeVar("Value")
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number from 0 that fits in 64 bits. A document with any other number in its place is refused."""


def to_body(value: object) -> dict[str, Any]:
    """Return the plain JSON object of a dataclass value."""
    return _adapter(type(value)).dump_python(value, mode="json")


def without_empty(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the body of a value without those of these fields that are empty, 0, false or null.

    Fields that came later are left out so: files and fingerprints of values without them are what they were.
    """
    return {name: value for name, value in body.items() if value or name not in names}


def from_body(kind: type[Value], body: object, where: str, *, strict: bool = False) -> Value:
    """Return the value of type `kind` that `body` describes. Unknown fields and wrong types are refused.

    Args:
        kind: a dataclass.
        body: plain JSON data.
        where: the file, for errors.
        strict: also refuse a number in quotes, and true or false in place of a number.

    Raises:
        InvalidInput: names the first wrong field (unknown fields come first), its value and what was expected.
    """
    adapter = _adapter(kind)
    try:
        # Pydantic's strict mode accepts a list for a tuple only when it reads JSON text.
        return (
            adapter.validate_json(json.dumps(body, default=str), strict=True)
            if strict
            else adapter.validate_python(body)
        )
    except ValidationError as error:
        problems = error.errors()
        unknown = [problem for problem in problems if problem["type"] == "unexpected_keyword_argument"]
        raise _invalid_field(kind, [*unknown, *problems][0], where) from None


@cache
def _adapter(kind: type[Value]) -> TypeAdapter[Value]:
    # Pydantic takes ten milliseconds to make one for a plan.
    return TypeAdapter(kind)


def fingerprint(value: object) -> str:
    """Return the SHA-256 of the value's canonical JSON: equal values have equal fingerprints."""
    return digest(to_body(value))


def digest(body: object) -> str:
    """Return the SHA-256 of plain JSON data in its canonical form."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_REMEDIES = {
    "missing": "Add it.",
    "float": "Write one number.",
    "int": "Write one whole number.",
    "string": "Write a text in quotes.",
    "tuple": "Write a list in square brackets.",
    "bool": "Write true or false.",
    "dataclass": "Write an object with its fields.",
}
"""What to do, by the beginning of pydantic's name for the error."""


def _invalid_field(kind: Any, problem: Any, where: str) -> InvalidInput:
    inner = problem.get("ctx", {}).get("error")
    if isinstance(inner, InvalidInput):
        return InvalidInput(inner.what, where=f"{where}, {inner.where}".strip(", "), remedy=inner.remedy)
    field = ".".join(str(part) for part in problem["loc"])
    at = f"{where}, field {field}" if field else where
    if problem["type"] == "unexpected_keyword_argument":
        known = _field_names(kind, problem["loc"][:-1])
        return InvalidInput("unknown key", where=at, remedy=nearest(str(problem["loc"][-1]), known))
    got = repr(problem.get("input"))
    instead = "" if problem["type"] == "missing" else f" (found {got if len(got) < 60 else got[:57] + '...'})"
    remedies = [remedy for name, remedy in _REMEDIES.items() if problem["type"].startswith(name)]
    return InvalidInput(f"{problem['msg']}{instead}", where=at, remedy=next(iter(remedies), ""))


def _field_names(kind: Any, path: Sequence[str | int]) -> list[str]:
    # The fields of the dataclass at the end of a path that starts at a type; empty if the path has no single dataclass.
    for part in path:
        kind = get_type_hints(kind).get(str(part)) if is_dataclass(kind) else _inner_dataclass(kind)
    kind = kind if is_dataclass(kind) else _inner_dataclass(kind)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _inner_dataclass(kind: Any) -> Any:
    # The type of the items of a list or dictionary, or of an optional value.
    inner = [argument for argument in get_args(kind) if is_dataclass(argument)]
    return inner[0] if len(inner) == 1 else None
