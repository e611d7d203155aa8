"""TOML files, without the parts of TOML that would break the code that uses the values."""

import tomllib
from pathlib import Path
from typing import Any, cast

from graphpipe.errors import InvalidInput
from graphpipe.files.text_file import read_text

DEEPEST = 64
"""The deepest nesting of tables and lists. Valid files need at most four levels."""


def read_toml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file, and its content.

    Raises:
        InvalidInput: the file is unreadable, is not TOML (the line is named), or is refused by `parse_toml`.
    """
    text = read_text(path)
    try:
        return text, parse_toml(text, str(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"not valid TOML: {error}", where=str(path), remedy="Mend it there.") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the content of a TOML text.

    Raises:
        TOMLDecodeError: it is not TOML.
        InvalidInput: it holds a whole number of more than 64 bits, a NUL character, or tables nested too deep.
    """
    try:
        content = tomllib.loads(text)
        _check(content, DEEPEST)
        return content
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # raised by `_check` and by the parser
        what = f"holds a value that this program does not read: {error}"
        raise InvalidInput(what, where=where, remedy="Mend it there.") from None


def _check(value: object, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"tables or lists {DEEPEST} deep")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number of more than 64 bits")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a NUL character")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in cast("list[object]", inner):
        _check(entry, depth - 1)
