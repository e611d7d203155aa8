"""The words for tasks, traces, operators and devices, shortened to fit."""

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

from graphpipe.costs import Recompute, State
from graphpipe.plans import Plan, Stage
from graphpipe.trace import SPAN_WORDS, Trace
from graphpipe.units import format_seconds

KIND_WORDS = {
    **SPAN_WORDS,
    "warm-up": "waits: warm-up",
    "bubble": "waits: bubble",
    "drain": "waits: drain",
}


SHADES = {"F": ", light", "B": ", dark", "I": ", medium", "W": ", darkest"}
"""How the shade of a kind of task differs from the others of its stage."""


def source_word(source: str) -> str:
    """Return the word for a trace's source: predicted, rehearsed or measured."""
    return {"simulated": "predicted", "emulated": "rehearsed"}.get(source, source)


def slowdown_sentences(traces: Iterable[Trace]) -> str:
    """Return what to know about the seconds of rehearsals among these traces: nothing if none was slowed down."""
    slowed = sorted({trace.slowdown for trace in traces} - {1.0})
    if not slowed:
        return ""
    return (
        f"A rehearsal took {' and '.join(f'{times:.3g}' for times in slowed)} times as long as planned, so that the "
        "machine could keep the times of all tasks. Its seconds are divided by that. Compute slept. Processes and "
        "messages were real, but large messages and sums of gradients were cut, so these took less time than planned."
    )


def signed_seconds(seconds: float) -> str:
    """Return seconds with their sign: +1.52 ms."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def gap_words(percent: float) -> str:
    """Return how far a step is from a bound, as the words before the bound."""
    return f"at most {percent:.1f} % above" if percent >= 0 else f"{-percent:.1f} % below"


def abbreviate(names: Sequence[str]) -> str:
    """Return lines for operators. A run of one branch (the part before the first dot) is shown by its two ends."""
    runs = [list(run) for _, run in groupby(names, key=lambda name: name.split(".")[0] if "." in name else "")]
    texts = [", ".join(run) if len(run) <= 2 else f"{span_of_names(run[0], run[-1])} ({len(run)})" for run in runs]
    return "\n".join(texts if len(texts) <= 4 else [*texts[:3], f"and {len(texts) - 3} more ({len(names)} in all)"])


def recomputes(plan: Plan) -> bool:
    """Return whether any stage recomputes, so that tables need a column for it."""
    return any(stage.recompute != "none" for stage in plan.stages)


def offloads(plan: Plan) -> bool:
    """Return whether any stage offloads, so that tables need a column for it."""
    return any(stage.offload for stage in plan.stages)


def offloaded_names(plan: Plan, stage: Stage) -> str:
    """Return what a stage offloads: `-`, or lines of names, and of the neighbours that it offloads to."""
    names = abbreviate(stage.offload) if stage.offload else "-"
    if not stage.offload_to:
        return names
    return f"{names}\nto {', '.join(plan.cluster.devices[device].name for device in stage.offload_to)}"


def recomputed_names(recompute: Recompute) -> str:
    """Return what a stage recomputes: `-`, `full`, or lines of names."""
    if isinstance(recompute, str):
        return "-" if recompute == "none" else recompute
    return abbreviate(recompute)


def sharded_name(state: State) -> str:
    """Return what the replicas of a stage shard: `-`, `optimizer`, `all` or `layers`."""
    return "-" if state == "whole" else state


def shares_replicas_name(stage: Stage) -> str:
    """Return how many devices share each replica of a stage: `-` or their number."""
    return "-" if stage.tensor == 1 else str(stage.tensor)


def device_names(plan: Plan, stage: Stage) -> str:
    """Return lines for a stage's devices. Consecutive devices are shown by the first and the last."""
    names = [plan.cluster.devices[device].name for device in stage.devices]
    first, last = stage.devices[0], stage.devices[-1]
    if len(names) > 1 and stage.devices == tuple(range(first, last + 1)):
        return span_of_names(names[0], names[-1])
    return "\n".join(names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more"])


def span_of_names(first: str, last: str) -> str:
    """Return `first .. last`, without the beginning that both names share, up to a separator.

    Numbers stay whole: `node0/v100-1 .. 12`.
    """
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return f"{first} .. {last[max(last.rfind(separator, 0, same) for separator in '-/:.') + 1 :]}"
