"""Seconds, bytes and rates: parsed from text with units, and formatted for people."""

import math
import re

from graphpipe.errors import InvalidInput

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"^\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


def _split(text: str, field: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise InvalidInput(f"'{text}' is not a number with a unit", where=field)
    try:
        return float(match[1]), match[2]
    except ValueError as error:
        raise InvalidInput(f"'{text}' is not a number with a unit", where=field) from error


def parse_bytes(text: str | float, field: str = "bytes") -> float:
    """Return bytes from `16 GB`, `16GiB` or a plain number of bytes.

    Raises:
        InvalidInput: not a number, or a unit that is not bytes.
    """
    if not isinstance(text, str):
        return float(text)
    number, unit = _split(text, field)
    scale = (_PREFIXES | _BINARY).get(unit.lower().removesuffix("b"))
    if scale is None:
        raise InvalidInput(f"'{unit}' is not a unit of bytes", where=field, remedy="Write 16 GB or 16 GiB.")
    return number * scale


def parse_rate(text: str | float, field: str = "rate") -> float:
    """Return bytes per second from `25 GB/s`, `100 Gb/s` (bits) or a plain number.

    Raises:
        InvalidInput: not a number, or a unit that is not bytes or bits per second.
    """
    if not isinstance(text, str):
        return float(text)
    number, unit = _split(text, field)
    amount = unit.removesuffix("/s")
    scale = (_PREFIXES | _BINARY).get(amount[:-1].lower())
    if unit and (scale is None or amount == unit or amount[-1:] not in ("B", "b")):
        remedy = "Write 25 GB/s, or 100 Gb/s for bits."
        raise InvalidInput(f"'{unit}' is not a unit of bytes per second", where=field, remedy=remedy)
    return number * (scale or 1.0) / (8.0 if amount.endswith("b") else 1.0)


def parse_flops(text: str | float, field: str = "flops") -> float:
    """Return FLOPs per second from `15 TFLOP/s`, `15 TFLOPS` or a plain number.

    Raises:
        InvalidInput: not a number, or a unit that is not FLOPs per second.
    """
    if not isinstance(text, str):
        return float(text)
    number, unit = _split(text, field)
    amount = unit.upper().removesuffix("S").removesuffix("/")
    scale = _PREFIXES.get(amount.removesuffix("FLOP").lower())
    if unit and (scale is None or not amount.endswith("FLOP")):
        raise InvalidInput(f"'{unit}' is not a unit of FLOPs per second", where=field, remedy="Write 15 TFLOP/s.")
    return number * (scale or 1.0)


def parse_seconds(text: str | float, field: str = "seconds") -> float:
    """Return seconds from `5 us`, `1.5ms` or a plain number of seconds.

    Raises:
        InvalidInput: not a number, or a unit that is not a time.
    """
    if not isinstance(text, str):
        return float(text)
    number, unit = _split(text, field)
    if unit and unit not in _SECONDS:
        raise InvalidInput(f"'{unit}' is not a unit of time", where=field, remedy="Write 5 us, 1.5 ms or 2 s.")
    return number * _SECONDS.get(unit, 1.0)


def format_bytes(count: float) -> str:
    """Return `count` bytes with three significant digits: 1536 -> '1.50 KiB'."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if abs(count) < 1024:
            return f"{_three_digits(count)} {unit}"
    return f"{_three_digits(count / 1024)} TiB"


def byte_unit(largest: float) -> tuple[str, float]:
    """Return the unit for an axis up to `largest` bytes, and its size: GiB, or MiB below half a GiB."""
    return ("GiB", 2.0**30) if largest >= 2.0**29 else ("MiB", 2.0**20)


def in_unit(count: float, size: float) -> str:
    """Return `count` bytes in a unit of `size` bytes with three significant digits, without the unit's name.

    Less than a thousandth of the unit is "<0.001".
    """
    if 0 < count < 1e-3 * size:
        return "<0.001"
    return _three_digits(count / size) if count else "0"


def format_seconds(seconds: float) -> str:
    """Return `seconds` with three significant digits: 0.00152 -> '1.52 ms'."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns" if seconds else "0 s"


def _three_digits(number: float) -> str:
    whole_digits = 1 + math.floor(math.log10(abs(number))) if number and math.isfinite(number) else 1
    return f"{number:,.{max(0, 3 - whole_digits)}f}"
