"""JSON documents: files with a kind and a schema version, in which every value is saved and loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import Value, to_body
from graphpipe.files.printable import check_printable
from graphpipe.files.text_file import read_text, write_text

SCHEMA_VERSION = 1
_HEAD = ("$schema", "graphpipe", "schema_version")
PUBLISHED = frozenset({"plan", "graph", "costs", "trace", "stages", "train"})
"""Kinds of documents that people read and write. Each has a JSON Schema: `graphpipe show --schema KIND`."""


def write_document(path: str | Path, kind: str, value: object) -> None:
    """Save `value` as a JSON document of this kind and the current schema version.

    Raises:
        InvalidInput: the file cannot be written.
    """
    reference = {"$schema": schema_id(kind)} if kind in PUBLISHED else {}
    head = {"graphpipe": kind, "schema_version": SCHEMA_VERSION}
    write_text(path, json.dumps(reference | head | to_body(value), indent=1) + "\n")


def schema_id(kind: str) -> str:
    """Return the identifier of the JSON Schema of documents of this kind. It is a name, not an address."""
    return f"urn:graphpipe:schema:{kind}:{SCHEMA_VERSION}"


def read_document(path: str | Path, kind: str, build: Callable[[dict[str, Any]], Value]) -> Value:
    """Load a document of this kind, and return what `build` makes of its body.

    Raises:
        InvalidInput: unreadable, another kind of file, or another schema version (both versions are named), or names
            with control characters.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "graphpipe" not in content:
        remedy = "It has no key 'graphpipe'. To read a profile of another tool, use `graphpipe import`."
        raise InvalidInput(f"not a graphpipe {kind} file", where=str(path), remedy=remedy)
    if content["graphpipe"] != kind:
        raise InvalidInput(f"is a graphpipe {content['graphpipe']} file, not a {kind} file", where=str(path))
    if content.get("schema_version") != SCHEMA_VERSION:
        raise InvalidInput(
            f"has schema version {content.get('schema_version')}, this graphpipe reads version {SCHEMA_VERSION}",
            where=str(path),
            remedy="Write the file again with this version.",
        )
    if kind in PUBLISHED:
        check_printable(content, str(path))
    return build({key: item for key, item in content.items() if key not in _HEAD})


def read_json(path: str | Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        InvalidInput: the file is missing, is empty, is not text, or is not JSON (line and column are named).
    """
    text = read_text(path)
    if not text.strip():
        raise InvalidInput("the file is empty", where=str(path), remedy="Write it again.")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        remedy = "The file seems to be cut off there: write it again." if not text[error.pos :].strip() else ""
        raise InvalidInput(what, where=str(path), remedy=remedy or "Mend it there, or write it again.") from None
    except (ValueError, RecursionError) as error:  # NaN, a number with thousands of digits, or nesting too deep
        raise InvalidInput(
            f"holds a value that this program does not read: {error}", where=str(path), remedy="Write finite numbers."
        ) from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
