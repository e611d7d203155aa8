"""What kinds of spans are called, and differences with their sign."""

from graphpipe.trace import SPAN_WORDS
from graphpipe.units import format_seconds

KIND_WORDS = {
    **SPAN_WORDS,
    "warm-up": "waits: warm-up",
    "bubble": "waits: bubble",
    "drain": "waits: drain",
}


def source_word(source: str) -> str:
    """Return what the page calls a trace's source."""
    return {"simulated": "predicted", "emulated": "rehearsed"}.get(source, source)


def signed_seconds(seconds: float) -> str:
    """Return seconds with their sign: +1.52 ms."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
