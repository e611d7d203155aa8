"""Traces: spans and memory over time, predicted or measured, with their comparison and export."""

from graphpipe.trace.chrome import save_chrome, to_chrome
from graphpipe.trace.compare import Comparison, Difference
from graphpipe.trace.span import COMPUTING, SPAN_WORDS, MemorySample, Span, SpanKind
from graphpipe.trace.trace import Trace, median_trace
from graphpipe.trace.typical import typical_trace

__all__ = [
    "COMPUTING",
    "SPAN_WORDS",
    "Comparison",
    "Difference",
    "MemorySample",
    "Span",
    "SpanKind",
    "Trace",
    "median_trace",
    "save_chrome",
    "to_chrome",
    "typical_trace",
]
