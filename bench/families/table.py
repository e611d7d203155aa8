"""The families of Hugging Face that the benchmarks build, as a table of data.

A file of `data` has groups. The families of a group share its fields; `names` lists those that have nothing of their
own, and `rows` gives what others have. The fields of `Row` have their names, and every other field is a size of the
configuration. `shared` holds values that several rows name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).with_name("data")
FILES = ("texts", "images", "captions", "sounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a family is built."""

    name: str
    """Name of the row: that of the family, perhaps with a comma and what is special."""
    model: str
    """Name of an automatic class of transformers, or of the model's own class."""
    inputs: Mapping[str, Sequence[Any]]
    """How each input is drawn, by its name: the name of a function in `bench.families.inputs`, and its arguments."""
    sizes: Mapping[str, Any]
    """Sizes of the configuration."""
    exact: bool = False
    """Whether the configuration has no other sizes than these."""
    fill: Literal["all", "matrices"] | None = None
    """Which parameters are drawn where they are zeros, so that gradients pass them."""
    runs_before: bool = False
    """Whether a first forward computes values that the model keeps."""

    @property
    def family(self) -> str:
        """Return the name by which transformers knows the family."""
        return self.name.partition(",")[0]


FIELDS = ("model", "inputs", "exact", "fill", "runs_before")


def _read(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))


def _row(name: str, fields: Mapping[str, Any]) -> Row:
    own = {key: field for key, field in fields.items() if key in FIELDS}
    return Row(name=name, sizes={key: size for key, size in fields.items() if key not in FIELDS}, **own)


def _rows(file: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for group in _read(file)["groups"]:
        own: dict[str, Any] = {name: {} for name in group.pop("names", ())} | group.pop("rows", {})
        rows |= {name: _row(name, {**group, **fields}) for name, fields in own.items()}
    return rows


FAMILIES: dict[str, Row] = {name: row for file in FILES for name, row in _rows(file).items()}
"""All rows by name."""
KNOWN_SIZES: dict[str, int] = {name: size for size, names in _read("sizes").items() for name in names}
"""Sizes by name of a configuration's attribute, as the families call them."""
LEFT_OUT: dict[str, list[str]] = _read("left_out")
"""Families that an automatic class knows and that are not built, by the reason."""
