"""The typical step of several that were measured: the mean of those in the middle, by their length."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from graphpipe.trace.span import Span, SpanKind
from graphpipe.trace.trace import Trace, median_trace

_Place = tuple[int, SpanKind, int, int, int, int]
"""Device, kind, stage, micro-batch, peer, and how many spans of the same came before."""


def typical_trace(traces: Sequence[Trace]) -> Trace:
    """Return the mean step of the middle half of some steps, by their length: every span begins and ends at its means.

    So spans, and the seconds between them, add up to the length of a step, and one disturbed task counts little. Steps
    that recorded other spans than the median one do not count.

    Args:
        traces: at least one measured step, all of one plan.
    """
    middle = median_trace(traces)
    by_time = sorted(traces, key=lambda trace: trace.step_seconds)
    some = by_time[len(by_time) // 4 : len(by_time) - len(by_time) // 4]
    places = _spans(middle)
    alike = [(trace, spans) for trace in some if (spans := _spans(trace)).keys() == places.keys()]
    means = [
        replace(
            span,
            start_seconds=fmean(spans[place].start_seconds for _, spans in alike),
            end_seconds=fmean(spans[place].end_seconds for _, spans in alike),
        )
        for place, span in places.items()
    ]
    return replace(
        middle,
        step_seconds=fmean(trace.step_seconds for trace, _ in alike),
        spans=tuple(sorted(means, key=lambda span: (span.device, span.start_seconds))),
    )


def _spans(trace: Trace) -> dict[_Place, Span]:
    before, places = Counter[tuple[int, SpanKind, int, int, int]](), dict[_Place, Span]()
    for span in trace.spans:
        same = span.device, span.kind, span.stage, span.micro_batch, span.peer
        places[*same, before[same]] = span
        before[same] += 1
    return places
