"""TOML files as this program reads them: less than TOML allows, because some of it breaks whoever reads on."""

import tomllib
from pathlib import Path
from typing import Any, cast

from graphpipe.errors import InvalidInput

DEEPEST = 64
"""Tables and lists within each other; no file of ours has more than four."""


def read_toml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file, and what it says.

    Raises:
        InvalidInput: unreadable, not TOML (the line is named), or nothing that `parse_toml` takes.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("not a text file", where=str(path), remedy="Give a file in UTF-8.") from None
    try:
        return text, parse_toml(text, str(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"not valid TOML: {error}", where=str(path), remedy="Mend it there.") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return what a TOML text says.

    Raises:
        TOMLDecodeError: it is not TOML.
        InvalidInput: it holds a whole number of more than 64 bits, a NUL character, or tables too deep.
    """
    try:
        content = tomllib.loads(text)
        _check(content, DEEPEST)
        return content
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # as `_check` raises them, and the parser itself
        what = f"holds what this program does not read: {error}"
        raise InvalidInput(what, where=where, remedy="Mend it there.") from None


def _check(value: object, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"tables or lists {DEEPEST} deep")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number of more than 64 bits")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a NUL character")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in cast("list[object]", inner):
        _check(each, depth - 1)
