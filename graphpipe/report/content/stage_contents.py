"""What a stage holds, in a few words: whole submodules instead of their operators, and numbered neighbours together.

image.layer0.attention, image.layer0.mlp, image.layer1.attention, image.layer1.mlp, text.*  ->  image.layer0-1, text
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from graphpipe.plans import Plan

MOST_LINES, MOST_CHARACTERS = 3, 22


def stage_contents(plan: Plan, number: int) -> list[str]:
    """Return the submodules and operators that a stage holds, in the model's order, at most `MOST_LINES`."""
    every, own = plan.graph.order, set(plan.stages[number].ops)
    whole = Counter(prefix for name in every for prefix in _prefixes(name))
    here = Counter(prefix for name in own for prefix in _prefixes(name))
    shared = _shared_root(every)
    held = dict.fromkeys(
        next(prefix for prefix in _prefixes(name) if prefix != shared and here[prefix] == whole[prefix])
        for name in every
        if name in own
    )
    lines = [_shortened(line) for line in _runs(name.removeprefix(f"{shared}.") for name in held)]
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more"]


def _shortened(name: str) -> str:
    # The end of a name says more than its beginning.
    return name if len(name) <= MOST_CHARACTERS else f"…{name[1 - MOST_CHARACTERS :]}"


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _shared_root(names: Sequence[str]) -> str:
    # A module around the whole model says nothing: its name is left out.
    roots = {name.partition(".")[0] for name in names}
    return roots.pop() if len(roots) == 1 and all("." in name for name in names) else ""


def _runs(names: Iterable[str]) -> list[str]:
    """Return the names, with each run of consecutive numbers as one: `layer0-3`."""
    runs: list[tuple[str, str, int | None, int | None]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d{1,6})", name)
        head, number = (match[1], int(match[2])) if match else (name, None)
        if runs and number is not None and runs[-1][0] == head and runs[-1][3] == number - 1:
            runs[-1] = (head, runs[-1][1], runs[-1][2], number)
        else:
            runs.append((head, name, number, number))
    return [name if first == last else f"{name}-{last}" for _, name, first, last in runs]
