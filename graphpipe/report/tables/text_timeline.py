"""A timeline in text.

s0 × 2  012a3b4c5d...    A row per stage, of one of its replicas. Time runs to the right. A digit is a forward (the last
s1      .012a3b4c5d..    digit of its micro-batch), a letter a backward (a for 0, b for 1, ...), = the optimizer, a dot
                         idle time. A colour is a stage, and the background of a backward has it too.
"""

from rich.text import Text

from graphpipe.plans import Plan
from graphpipe.report.content.device_groups import device_groups
from graphpipe.trace import COMPUTING, Span, Trace
from graphpipe.units import format_seconds

MOST_ROWS = 32
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


def timeline(trace: Trace, width: int, plan: Plan | None = None) -> Text:
    """Return the timeline of a trace, `width` characters wide.

    Args:
        trace: the step.
        width: characters of a line.
        plan: of the trace, for a row per stage. None: a row per device.
    """
    rows = _rows(trace, plan)
    shown = rows[:MOST_ROWS]
    margin = max(len(name) for name, _ in shown) + 2
    columns = max(10, width - margin)
    picture = Text(no_wrap=True, overflow="crop")
    for name, device in shown:
        picture.append(name.ljust(margin))
        for span in _columns(trace, device, columns):
            picture.append(_mark(span), style=_style(span))
        picture.append("\n")
    if len(rows) > MOST_ROWS:
        picture.append(f"and {len(rows) - MOST_ROWS} more rows\n")
    column = format_seconds(trace.step_seconds / columns)
    picture.append(f"{'':{margin}}one character is {column}; digits: forward, letters: backward, =: optimizer")
    return picture


def _rows(trace: Trace, plan: Plan | None) -> list[tuple[str, int]]:
    """Return the name of each row and its device."""
    if plan is None:
        return [(trace.device_names[device], device) for device in trace.used_devices]
    return [(group.name, group.devices[0]) for group in device_groups(plan)]


def _style(span: Span | None) -> str:
    if span is None:
        return "dim"
    colour = _COLOURS[span.stage % len(_COLOURS)]
    return f"{colour} reverse" if span.kind in ("B", "I", "W") else colour


def _columns(trace: Trace, device: int, count: int) -> list[Span | None]:
    """Return the span that fills each of `count` equal parts of the step on a device, or None."""
    cells: list[Span | None] = [None] * count
    scale = count / trace.step_seconds if trace.step_seconds else 0.0
    for span in trace.spans:
        if span.device == device and span.kind in COMPUTING:
            first, last = (round(seconds * scale) for seconds in (span.start_seconds, span.end_seconds))
            cells[first:last] = [span] * (min(last, count) - first)
    return cells


def _mark(span: Span | None) -> str:
    if span is None:
        return "."
    if span.kind == "optimizer":
        return "="
    return str(span.micro_batch % 10) if span.kind == "F" else "abcdefghij"[span.micro_batch % 10]
