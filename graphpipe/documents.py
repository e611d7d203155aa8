"""JSON files with a kind and a schema version: the form in which every value is saved and loaded."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from graphpipe.errors import InvalidInput

SCHEMA_VERSION = 1
Value = TypeVar("Value")


def to_body(value: object) -> dict[str, Any]:
    """Return the plain JSON object of a dataclass value."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def from_body(kind: type[Value], body: object, where: str) -> Value:
    """Return the value of type `kind` that `body` describes; unknown fields and wrong types are refused.

    Raises:
        InvalidInput: names the first field at fault, what it holds and what was expected.
    """
    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        inner = first.get("ctx", {}).get("error")
        if isinstance(inner, InvalidInput):
            raise InvalidInput(inner.what, where=f"{where}, {inner.where}".strip(", "), remedy=inner.remedy) from None
        field = ".".join(str(part) for part in first["loc"])
        got = repr(first.get("input"))
        what = f"{first['msg']} (found {got if len(got) < 60 else got[:57] + '...'})"
        raise InvalidInput(what, where=f"{where}, field {field}" if field else where) from None


def fingerprint(value: object) -> str:
    """Return the SHA-256 of the value's canonical JSON: equal values have equal fingerprints."""
    text = json.dumps(to_body(value), sort_keys=True, separators=(",", ":"))
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
        raise InvalidInput("not a text file", where=str(path)) from None
    if not text.strip():
        raise InvalidInput("the file is empty", where=str(path))
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise InvalidInput(what, where=str(path)) from None
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits, a nest of thousands of lists
        raise InvalidInput(f"holds what this program does not read: {error}", where=str(path)) from None


def read_document(path: str | Path, kind: str, build: Callable[[dict[str, Any]], Value]) -> Value:
    """Load a document of this kind, and give its body to `build`.

    Raises:
        InvalidInput: unreadable, another kind of file, or another schema version (both versions are named).
    """
    content = read_json(path)
    if not isinstance(content, dict) or "graphpipe" not in content:
        raise InvalidInput(f"not a graphpipe {kind} file", where=str(path))
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
