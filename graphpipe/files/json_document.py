"""JSON files with a kind and a schema version: the form in which every value is saved and loaded."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from graphpipe.errors import InvalidInput, nearest

SCHEMA_VERSION = 1
Value = TypeVar("Value")
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number from 0 that 64 bits hold: a document with another is refused."""


def to_body(value: object) -> dict[str, Any]:
    """Return the plain JSON object of a dataclass value."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def from_body(kind: type[Value], body: object, where: str, *, strict: bool = False) -> Value:
    """Return the value of type `kind` that `body` describes; unknown fields and wrong types are refused.

    Args:
        kind: a dataclass.
        body: what JSON can hold.
        where: the file, for errors.
        strict: refuse a number in quotes, and a truth value for a number.

    Raises:
        InvalidInput: names the first field at fault (unknown ones first), what it holds and what was expected.
    """
    adapter = TypeAdapter(kind)
    try:
        # Only from JSON does a strict reader take a list for a tuple.
        return (
            adapter.validate_json(json.dumps(body, default=str), strict=True)
            if strict
            else adapter.validate_python(body)
        )
    except ValidationError as error:
        problems = error.errors()
        unknown = [each for each in problems if each["type"] == "unexpected_keyword_argument"]
        raise _refusal(kind, [*unknown, *problems][0], where) from None


def _refusal(kind: Any, problem: Any, where: str) -> InvalidInput:
    inner = problem.get("ctx", {}).get("error")
    if isinstance(inner, InvalidInput):
        return InvalidInput(inner.what, where=f"{where}, {inner.where}".strip(", "), remedy=inner.remedy)
    field = ".".join(str(part) for part in problem["loc"])
    at = f"{where}, field {field}" if field else where
    if problem["type"] == "unexpected_keyword_argument":
        return InvalidInput(
            "unknown key", where=at, remedy=nearest(str(problem["loc"][-1]), _keys(kind, problem["loc"][:-1]))
        )
    got = repr(problem.get("input"))
    found = "" if problem["type"] == "missing" else f" (found {got if len(got) < 60 else got[:57] + '...'})"
    kinds = [remedy for name, remedy in _REMEDIES.items() if problem["type"].startswith(name)]
    return InvalidInput(f"{problem['msg']}{found}", where=at, remedy=next(iter(kinds), ""))


_REMEDIES = {
    "missing": "Add it.",
    "float": "Write one number.",
    "int": "Write one whole number.",
    "string": "Write a text in quotes.",
    "tuple": "Write a list in square brackets.",
    "bool": "Write true or false.",
    "dataclass": "Write an object with its fields.",
}
"""By how pydantic's name of the error begins."""


def _keys(kind: Any, path: Sequence[str | int]) -> list[str]:
    """Return the field names of the dataclass that a path leads to from a type; none if that cannot be told."""
    for part in path:
        kind = get_type_hints(kind).get(str(part)) if is_dataclass(kind) else _inner(kind)
    kind = kind if is_dataclass(kind) else _inner(kind)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _inner(kind: Any) -> Any:
    # What is in a list or a dictionary, or a value that may be missing.
    inner = [each for each in get_args(kind) if is_dataclass(each)]
    return inner[0] if len(inner) == 1 else None


def fingerprint(value: object) -> str:
    """Return the SHA-256 of the value's canonical JSON: equal values have equal fingerprints."""
    return digest(to_body(value))


def digest(body: object) -> str:
    """Return the SHA-256 of what JSON can hold, in its canonical form."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the whole new one, never a part."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None


def write_document(path: str | Path, kind: str, value: object) -> None:
    """Save `value` as a JSON document of this kind and the current schema version."""
    head = {"graphpipe": kind, "schema_version": SCHEMA_VERSION}
    write_text(path, json.dumps(head | to_body(value), indent=1) + "\n")


def read_json(path: str | Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        InvalidInput: the file is missing, is empty, is not text, or is not JSON (line and column are named).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("not a text file", where=str(path), remedy="Give a file in UTF-8.") from None
    if not text.strip():
        raise InvalidInput("the file is empty", where=str(path), remedy="Write it again.")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        remedy = "It ends there, as if it were cut off: write it again." if not text[error.pos :].strip() else ""
        raise InvalidInput(what, where=str(path), remedy=remedy or "Mend it there, or write it again.") from None
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits, a nest of thousands of lists
        raise InvalidInput(
            f"holds what this program does not read: {error}", where=str(path), remedy="Write finite numbers."
        ) from None


def read_document(path: str | Path, kind: str, build: Callable[[dict[str, Any]], Value]) -> Value:
    """Load a document of this kind, and give its body to `build`.

    Raises:
        InvalidInput: unreadable, another kind of file, or another schema version (both versions are named).
    """
    content = read_json(path)
    if not isinstance(content, dict) or "graphpipe" not in content:
        remedy = "It has no key 'graphpipe': other tools' profiles are read by `graphpipe import`."
        raise InvalidInput(f"not a graphpipe {kind} file", where=str(path), remedy=remedy)
    if content["graphpipe"] != kind:
        raise InvalidInput(f"is a graphpipe {content['graphpipe']} file, not a {kind} file", where=str(path))
    if content.get("schema_version") != SCHEMA_VERSION:
        raise InvalidInput(
            f"has schema version {content.get('schema_version')}, this graphpipe reads version {SCHEMA_VERSION}",
            where=str(path),
            remedy="Write the file again with this version.",
        )
    return build({key: item for key, item in content.items() if key not in ("graphpipe", "schema_version")})


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
