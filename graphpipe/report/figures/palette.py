"""The colours: a hue per stage, a shade of it per kind of task, other colours for everything else."""

import colorsys
from collections.abc import Sequence

from graphpipe.trace import SpanKind

HUES = ("4e79a7", "f28e2b", "59a14f", "b07aa1", "76b7b2", "e15759", "edc948", "9c755f", "ff9da7", "8f8fbf")
"""Hues of the first stages. More stages get computed hues, so that no colour repeats within a picture."""
_GOLDEN = 0.61803398875
_SHADES = {"F": 0.4, "B": -0.12, "I": 0.1, "W": -0.4}
"""How far each kind's hue is mixed with white (positive) or black (negative)."""
_ODD_SHADES = {"F": 0.68, "B": -0.34, "I": 0.24, "W": -0.6}
"""Shades of every second mini-batch, if a picture shows several: further from the other kinds."""
_OTHERS = {
    "send": "8a929c",
    "receive": "a9b0b8",
    "reduce": "d37295",
    "optimizer": "6a5aa8",
    "evict": "b5895b",
    "fetch": "d3b48c",
}
IDLE = {
    "warm-up": "rgba(66,133,200,0.16)",
    "bubble": "rgba(214,39,40,0.22)",
    "drain": "rgba(140,140,140,0.22)",
}
"""Idle times of a device: before its first task, between its tasks, and after its last task. The colours are half
transparent, so that they suit a dark and a light page."""
_FIXED = (*_OTHERS, *IDLE)
"""The kinds whose colour is the same for every stage."""


def code(kind: str, stage: int) -> int:
    """Return the position in `colours()` of a kind of span or idle time of a stage."""
    if kind in _SHADES:
        return len(_FIXED) + stage * len(_SHADES) + list(_SHADES).index(kind)
    return _FIXED.index(kind)


def colours(stages: int) -> list[str]:
    """Return every colour of a picture of so many stages, in order of `code`."""
    tasks = [task_colour(kind, stage) for stage in range(stages) for kind in _SHADES]
    return [*(f"#{colour}" for colour in _OTHERS.values()), *IDLE.values(), *tasks]


def odd_colours(stages: int) -> list[str]:
    """Return the colours of the tasks of every second mini-batch, in the order of those of `colours`."""
    return [task_colour(kind, stage, odd=True) for stage in range(stages) for kind in _SHADES]


def odd_kinds(stages: int) -> list[str]:
    """Return the kind of task of each of `odd_colours`."""
    return [kind for _ in range(stages) for kind in _SHADES]


def kinds(stages: int) -> list[str]:
    """Return the kind of span or idle time of every colour, in order of `code`."""
    return [*_FIXED, *(kind for _ in range(stages) for kind in _SHADES)]


def colour(kind: str, stage: int) -> str:
    """Return the colour of a kind of span of a stage."""
    return task_colour(kind, stage) if kind in _SHADES else {**_others(), **IDLE}[kind]


def stage_colour(stage: int) -> str:
    """Return the hue of a stage, for its box."""
    return f"#{_hue(stage)}"


def task_colour(kind: SpanKind | str, stage: int, *, odd: bool = False) -> str:
    """Return the shade of a kind of task of a stage, in every second mini-batch or in the others."""
    shade = (_ODD_SHADES if odd else _SHADES)[kind]
    towards, share = (255, shade) if shade > 0 else (0, -shade)
    parts = (round(part + (towards - part) * share) for part in _parts(_hue(stage)))
    return "#" + "".join(f"{part:02x}" for part in parts)


def ink(background: str) -> str:
    """Return black or white, whichever is easier to read on a background `#rrggbb`."""
    red, green, blue = _parts(background.removeprefix("#"))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def _others() -> dict[str, str]:
    return {kind: f"#{colour}" for kind, colour in _OTHERS.items()}


def _hue(stage: int) -> str:
    # Steps of the golden ratio around the circle of hues keep neighbours apart. Lightness and saturation change too.
    if stage < len(HUES):
        return HUES[stage]
    lightness, saturation = 0.42 + 0.07 * (stage % 4), 0.38 + 0.11 * (stage % 3)
    parts = colorsys.hls_to_rgb(stage * _GOLDEN % 1.0, lightness, saturation)
    return "".join(f"{round(255 * part):02x}" for part in parts)


def _parts(colour: str) -> Sequence[int]:
    return [int(colour[at : at + 2], 16) for at in (0, 2, 4)]
