"""The zoo by name: `mmt` at the paper's size, `mmt-small` (or `mmt:small`) for a laptop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.zoo import candle_uno, case_study, dlrm, gpt, mmt, two_tower
from graphpipe.model.zoo.shapes import vary
from graphpipe.model.zoo.zoo_model import ZooModel

Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Entry(Generic[Shape]):
    """A model of the zoo: how it is built from a shape, and its two shapes."""

    build: Callable[[Shape, str], ZooModel]
    paper: Shape
    small: Shape


ZOO: Mapping[str, Entry[Any]] = MappingProxyType(
    {
        "mmt": Entry(mmt.build, mmt.PAPER, mmt.SMALL),
        "dlrm": Entry(dlrm.build, dlrm.PAPER, dlrm.SMALL),
        "candle-uno": Entry(candle_uno.build, candle_uno.PAPER, candle_uno.SMALL),
        "case-study": Entry(case_study.build, case_study.PAPER, case_study.SMALL),
        "gpt": Entry(gpt.build, gpt.PAPER, gpt.SMALL),
        "two-tower": Entry(two_tower.build, two_tower.PAPER, two_tower.SMALL),
    }
)


def zoo(name: str, *, device: str | None = None, **options: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the module and example inputs of a zoo model; see `zoo_model`."""
    model = zoo_model(name, device=device, **options)
    return model.module, model.example_inputs


def zoo_model(name: str, *, device: str | None = None, **options: int) -> ZooModel:
    """Return a zoo model by name.

    Args:
        name: `mmt` and so on at the paper's size, `mmt-small` or `mmt:small` at a size that trains on a laptop.
        device: `meta` (the paper's sizes' default: no memory, no weights, enough to plan) or a real one (`cpu` is
            the small sizes' default).
        options: changes of the shape, such as `branches=2`.

    Raises:
        InvalidInput: no such model or option (the nearest is named), or an option out of range.
    """
    base = name.removesuffix("-small").removesuffix(":small")
    small = base != name
    if base not in ZOO:
        known = [*ZOO, *(f"{each}-small" for each in ZOO)]
        raise InvalidInput(f"'{name}' is no model of the zoo", remedy=nearest(name, known))
    entry = ZOO[base]
    shape = vary(name, entry.small if small else entry.paper, options)
    return entry.build(shape, device or ("cpu" if small else "meta"))
