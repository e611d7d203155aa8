"""The zoo by name: `mmt` at the paper's size, `mmt-small` (or `mmt:small`) for a laptop."""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.zoo import (
    attention_residuals,
    candle_uno,
    case_study,
    densenet,
    dlrm,
    gpt,
    mmt,
    two_tower,
    unet,
    vision_language,
)
from graphpipe.model.zoo.zoo_model import ZooModel


class Sizes(Protocol):
    """A dataclass of whole numbers: the sizes of a model."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Shape = TypeVar("Shape", bound=Sizes)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Shape]):
    """A model of the zoo: its builder, and its two shapes."""

    build: Callable[[Shape, str], ZooModel]
    """Returns the model of a shape on a device."""
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
        "attention-residuals": Entry(attention_residuals.build, attention_residuals.PAPER, attention_residuals.SMALL),
        "unet": Entry(unet.build, unet.PAPER, unet.SMALL),
        "densenet": Entry(densenet.build, densenet.PAPER, densenet.SMALL),
        "vision-language": Entry(vision_language.build, vision_language.PAPER, vision_language.SMALL),
    }
)


def zoo(name: str, *, device: str | None = None, **options: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the module and example inputs of a zoo model (see `zoo_model`)."""
    model = zoo_model(name, device=device, **options)
    return model.module, model.example_inputs


def zoo_model(name: str, *, device: str | None = None, **options: int) -> ZooModel:
    """Return a zoo model by name.

    Args:
        name: `mmt` and so on at the paper's size; `mmt-small` or `mmt:small` at a size that trains on a laptop.
        device: `meta` needs no memory, has no weights and is enough to plan; it is the default at the paper's size.
            `cpu` is the default at the small size.
        options: changes of the shape, such as `branches=2`.

    Raises:
        InvalidInput: an unknown model or option (the nearest is named), or an option out of range.
    """
    base = name.removesuffix("-small").removesuffix(":small")
    small = base != name
    if base not in ZOO:
        known = [*ZOO, *(f"{model}-small" for model in ZOO)]
        raise InvalidInput(f"'{name}' is not a model of the zoo", remedy=nearest(name, known))
    entry = ZOO[base]
    shape = _with_options(name, entry.small if small else entry.paper, options)
    return entry.build(shape, device or ("cpu" if small else "meta"))


def _with_options(model: str, shape: Shape, options: Mapping[str, Any]) -> Shape:
    known = [field.name for field in fields(shape)]
    for name, size in options.items():
        if name not in known:
            raise InvalidInput(f"'{name}' is not an option of {model}", remedy=nearest(name, [*known, "device"]))
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidInput(f"is {size!r}, must be a positive integer", where=f"{model}, option {name}")
    changed = replace(shape, **options)
    for field in fields(changed):
        if divisor := field.metadata.get("multiple_of"):
            _check_multiple(model, changed, field.name, divisor)
    return changed


def _check_multiple(model: str, shape: Sizes, name: str, divisor: str) -> None:
    whole, part = getattr(shape, name), getattr(shape, divisor)
    if whole % part:
        raise InvalidInput(
            f"{name} = {whole} does not divide by {divisor} = {part}",
            where=model,
            remedy=f"Choose {name} as a multiple of {divisor}.",
        )
