"""A model's shape: a dataclass of whole numbers, varied by name and checked."""

from dataclasses import Field, asdict, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from graphpipe.errors import InvalidInput, nearest


class IsDataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Shape = TypeVar("Shape", bound=IsDataclass)


def vary(model: str, shape: Shape, options: dict[str, Any]) -> Shape:
    """Return the shape with `options` changed.

    Raises:
        InvalidInput: an option the model does not have (the nearest is named), or a value that is no positive integer.
    """
    known = [field.name for field in fields(shape)]
    for name, amount in options.items():
        if name not in known:
            raise InvalidInput(f"'{name}' is no option of {model}", remedy=nearest(name, [*known, "device"]))
        if not isinstance(amount, int) or isinstance(amount, bool) or amount < 1:
            raise InvalidInput(f"is {amount!r}, must be a positive integer", where=f"{model}, option {name}")
    varied = replace(shape, **options)
    _check_divisors(model, asdict(varied))
    return varied


def _check_divisors(model: str, numbers: dict[str, int]) -> None:
    pairs = [("pixels", "patch"), *((f"{side}hidden", f"{side}heads") for side in ("", "image_", "text_"))]
    for whole, part in pairs:
        if whole in numbers and part in numbers and numbers[whole] % numbers[part]:
            raise InvalidInput(
                f"{whole} = {numbers[whole]} does not divide by {part} = {numbers[part]}",
                where=model,
                remedy=f"Choose {whole} as a multiple of {part}.",
            )
