"""`Section`: one table of a TOML file, read key by key. Each error names the key."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphpipe.errors import InvalidInput, nearest

Parse = Callable[[str | float, str], float]
"""Takes a value and the place of its key, for errors."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a TOML file.

    Every method raises InvalidInput for a key that is missing without a default, of another type, or out of range.
    """

    table: dict[str, Any]
    where: str
    """The file and the name of the table, for errors."""

    def at(self, key: str) -> str:
        """Return the place of a key, for errors."""
        return f"{self.where}, {key}" if self.where.endswith(".toml") else f"{self.where}.{key}"

    def only(self, *known: str) -> None:
        """Refuse keys other than these."""
        for key in self.table:
            if key not in known:
                raise InvalidInput(f"unknown key '{key}'", where=self.where, remedy=nearest(key, list(known)))

    def section(self, key: str) -> "Section":
        """Return the table of a key."""
        return Section(self._value(key, dict, "a table"), self.at(key))

    def sections(self, key: str) -> list["Section"]:
        """Return the tables of an array of tables. If the key is missing, the list is empty."""
        entries = self._value(key, list, "an array of tables", [])
        numbered = Section({f"{key}[{number}]": entry for number, entry in enumerate(entries)}, self.where)
        return [numbered.section(name) for name in numbered.table]

    def lists(self, key: str) -> list[list[str]]:
        """Return a list of lists of strings."""
        expected = "a list of lists of strings"
        groups = self._value(key, list, expected)
        if not all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in groups):
            raise InvalidInput(f"is {groups!r}, must be {expected}", where=self.at(key))
        return groups

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self._value(key, str, "a string", default)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return self._value(key, bool, "true or false", default)

    def count(self, key: str) -> int:
        """Return a whole number from 1 to 65,536."""
        number = self._value(key, int, "a whole number")
        if not 1 <= number <= 65_536:
            raise InvalidInput(f"is {number}, must be from 1 to 65,536", where=self.at(key))
        return number

    def quantity(self, key: str, parse: Parse, *, default: float | None = None, zero: bool = False) -> float:
        """Return a number with a unit (a string) or in base units (a number): positive, or also 0 if `zero`."""
        value = self._value(key, (str, int, float), "a number, or a string such as '5 us'", default)
        amount = parse(value, self.at(key))
        if not math.isfinite(amount) or amount < 0 or (amount == 0 and not zero):
            limit = "finite and not negative" if zero else "positive and finite"
            raise InvalidInput(f"is {value}, must be {limit}", where=self.at(key))
        return amount

    def _value(self, key: str, kinds: type | tuple[type, ...], expected: str, default: Any = None) -> Any:
        value = self.table.get(key, default)
        if value is None:
            raise InvalidInput(f"'{key}' is missing", where=self.where, remedy=f"It is {expected}.")
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise InvalidInput(f"is {value!r}, must be {expected}", where=self.at(key))
        return value
