"""What happened: spans and memory over time, predicted or measured; their comparison and export."""

from graphpipe.trace.chrome import save_chrome, to_chrome
from graphpipe.trace.compare import Comparison, Difference, compare
from graphpipe.trace.trace import SPAN_WORDS, MemorySample, Span, SpanKind, Trace

__all__ = [
    "SPAN_WORDS",
    "Comparison",
    "Difference",
    "MemorySample",
    "Span",
    "SpanKind",
    "Trace",
    "compare",
    "save_chrome",
    "to_chrome",
]
