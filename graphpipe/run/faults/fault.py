"""A fault to be injected, written as `kill@rank2:step3:phase=send`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphpipe.errors import InvalidInput, nearest

PHASES = ("forward", "backward", "send", "receive", "reduce", "optimizer", "checkpoint")

KINDS: Mapping[str, tuple[str, ...]] = {
    "kill": PHASES,
    "raise": PHASES,
    "stop": PHASES,
    "slow": PHASES,
    "oom": PHASES,
    "nan": ("forward", "backward"),
    "shape": ("send", "forward"),
    "disk-full": ("checkpoint",),
}
"""The phases in which each kind can strike. The first is the default."""

_FORM = "KIND@rankR:stepS[:phase=PHASE][:seconds=X]"
_TEXT = re.compile(r"([^@]+)@rank(\d+):step(\d+)((?::[a-z]+=[^:=]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, on which rank and when. A fault strikes once."""

    kind: str
    rank: int
    step: int
    """Number of the step, from 1, as in metrics.jsonl."""
    phase: str
    seconds: float = 1.0
    """How long a fault of the kind `slow` lasts."""

    def __str__(self) -> str:
        """Return the text that `parse_fault` reads."""
        seconds = f":seconds={self.seconds:g}" if self.kind == "slow" else ""
        return f"{self.kind}@rank{self.rank}:step{self.step}:phase={self.phase}{seconds}"


def parse_fault(text: str) -> Fault:
    """Return the fault that a text describes.

    Raises:
        InvalidInput: the text has another form, an unknown kind or phase (the nearest is named), or a phase in which
            this kind cannot strike.
    """
    where = f"fault '{text}'"
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("has another form", where=where, remedy=f"Write {_FORM}.")
    kind, rank, step, rest = match.groups()
    options = dict(option.split("=") for option in rest.split(":")[1:])
    if unknown := [name for name in options if name not in ("phase", "seconds")]:
        raise InvalidInput(f"unknown option '{unknown[0]}'", where=where, remedy=f"Write {_FORM}.")
    if kind not in KINDS:
        raise InvalidInput(f"unknown kind '{kind}'", where=where, remedy=nearest(kind, [*KINDS]))
    phase = options.get("phase", KINDS[kind][0])
    if phase not in PHASES:
        raise InvalidInput(f"unknown phase '{phase}'", where=where, remedy=nearest(phase, [*PHASES]))
    if phase not in KINDS[kind]:
        raise InvalidInput(
            f"'{kind}' cannot strike in phase '{phase}'", where=where, remedy=f"It can in: {', '.join(KINDS[kind])}."
        )
    if int(step) < 1:
        raise InvalidInput("step is 0, the first is 1", where=where)
    return Fault(kind=kind, rank=int(rank), step=int(step), phase=phase, seconds=_seconds(kind, options, where))


def parse_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults that several texts describe.

    Raises:
        InvalidInput: as `parse_fault`.
    """
    return tuple(parse_fault(text) for text in texts)


def _seconds(kind: str, options: Mapping[str, str], where: str) -> float:
    if "seconds" not in options:
        return 1.0
    if kind != "slow":
        raise InvalidInput(f"'{kind}' takes no seconds", where=where, remedy="Only 'slow' lasts a given time.")
    try:
        seconds = float(options["seconds"])
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"seconds is '{options['seconds']}', must be positive and finite", where=where)
    return seconds
