"""Many names in few words."""

from collections.abc import Sequence
from itertools import groupby, takewhile

from graphpipe.costs import Recompute
from graphpipe.plans import Plan, Stage


def abbreviate(names: Sequence[str]) -> str:
    """Return lines for operators: a run of one branch (what stands before the first dot) is told by its ends."""
    runs = [list(run) for _, run in groupby(names, key=lambda name: name.split(".")[0] if "." in name else "")]
    texts = [", ".join(run) if len(run) <= 2 else f"{span_of_names(run[0], run[-1])} ({len(run)})" for run in runs]
    return "\n".join(texts if len(texts) <= 4 else [*texts[:3], f"and {len(texts) - 3} more ({len(names)} in all)"])


def recomputes(plan: Plan) -> bool:
    """Whether any stage recomputes: worth a column."""
    return any(stage.recompute != "none" for stage in plan.stages)


def recomputed_names(recompute: Recompute) -> str:
    """Return what a stage recomputes: `-`, `full`, or lines of names."""
    if isinstance(recompute, str):
        return "-" if recompute == "none" else recompute
    return abbreviate(recompute)


def device_names(plan: Plan, stage: Stage) -> str:
    """Return lines for a stage's devices: neighbours are told by the first name and how the last one ends."""
    names = [plan.cluster.devices[device].name for device in stage.devices]
    first, last = stage.devices[0], stage.devices[-1]
    if len(names) > 1 and stage.devices == tuple(range(first, last + 1)):
        return span_of_names(names[0], names[-1])
    return "\n".join(names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more"])


def span_of_names(first: str, last: str) -> str:
    """Return both ends: of the last name what it does not share with the first, up to a separator.

    A number is not cut in two: `node0/v100-1 .. 12`.
    """
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return f"{first} .. {last[max(last.rfind(separator, 0, same) for separator in '-/:.') + 1 :]}"
