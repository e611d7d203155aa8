"""What happened: spans and memory over time, predicted or measured."""

from graphpipe.trace.trace import MemorySample, Span, SpanKind, Trace

__all__ = ["MemorySample", "Span", "SpanKind", "Trace"]
