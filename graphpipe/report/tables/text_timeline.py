"""A timeline in text.

d0  012a3b4c5d...    A row per device, time runs to the right. A digit is a forward (the last digit of its micro-batch),
d1  .012a3b4c5d..    a letter a backward (a for 0, b for 1, ...), = the optimizer, a dot idle time. A colour is a stage.
"""

from rich.text import Text

from graphpipe.trace import Span, Trace
from graphpipe.units import format_seconds

MOST_ROWS = 32
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


def timeline(trace: Trace, width: int) -> Text:
    """Return the timeline of a trace, `width` characters wide."""
    shown = trace.used_devices[:MOST_ROWS]
    margin = max(len(trace.device_names[device]) for device in shown) + 2
    columns = max(10, width - margin)
    picture = Text(no_wrap=True, overflow="crop")
    for device in shown:
        picture.append(trace.device_names[device].ljust(margin))
        for span in _columns(trace, device, columns):
            picture.append(_mark(span), style=_COLOURS[span.stage % len(_COLOURS)] if span else "dim")
        picture.append("\n")
    if len(trace.used_devices) > MOST_ROWS:
        picture.append(f"and {len(trace.used_devices) - MOST_ROWS} more devices\n")
    each = format_seconds(trace.step_seconds / columns)
    picture.append(f"{'':{margin}}one character is {each}; digits: forward, letters: backward, =: optimizer")
    return picture


def _columns(trace: Trace, device: int, count: int) -> list[Span | None]:
    """Return the span that fills each of `count` equal parts of the step on a device, or None."""
    cells: list[Span | None] = [None] * count
    scale = count / trace.step_seconds if trace.step_seconds else 0.0
    for span in trace.spans:
        if span.device == device and span.kind in ("F", "B", "I", "W", "optimizer"):
            first, last = (round(seconds * scale) for seconds in (span.start_seconds, span.end_seconds))
            cells[first:last] = [span] * (min(last, count) - first)
    return cells


def _mark(span: Span | None) -> str:
    if span is None:
        return "."
    if span.kind == "optimizer":
        return "="
    return str(span.micro_batch % 10) if span.kind == "F" else "abcdefghij"[span.micro_batch % 10]
