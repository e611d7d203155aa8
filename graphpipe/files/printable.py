"""Text from files and users, as it may be printed: a terminal would obey the control characters in it."""

import unicodedata
from typing import Any, cast

from graphpipe.errors import InvalidInput

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """Return text in which every control character but newlines and tabs is written out, such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if _is_plain(letter) else letter.encode("unicode_escape").decode() for letter in text)


def check_printable(value: object, where: str) -> None:
    """Check that no text in a JSON value has control characters.

    Raises:
        InvalidInput: one has. The text is part of the message, written out.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if not each.isprintable() and not all(map(_is_plain, each)):
                what = f"'{printable(each)}' has control characters, which a terminal would obey"
                raise InvalidInput(what, where=where, remedy="Choose another name.")
        elif isinstance(each, dict):
            waiting += [*cast("dict[Any, object]", each), *cast("dict[Any, object]", each).values()]
        elif isinstance(each, list):
            waiting += cast("list[object]", each)


def _is_plain(character: str) -> bool:
    return character in _KEPT or unicodedata.category(character) != "Cc"
