"""What a reader wants to know first: whether the prediction held, and what limits the step."""

from dataclasses import dataclass

from graphpipe.report.content.explanation import GroupShare, group_shares
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import KIND_WORDS, source_word
from graphpipe.trace import Trace
from graphpipe.trace.compare import compare, settled_seconds
from graphpipe.units import format_seconds

CLOSE = 0.1
"""A prediction that is off by at most this share is called close."""
BUSY = 0.8
"""Devices that compute for this share of a step limit it by their work, others by their waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One sentence, and its figures."""

    sentence: str
    figures: tuple[tuple[str, str], ...]
    """Names and values."""


def verdict(subject: Subject) -> Verdict | None:
    """Return what stands at the top of a report; None if nothing took time."""
    if not subject.step_seconds:
        return None
    figures = [(_name(subject, trace), format_seconds(trace.step_seconds)) for trace in subject.traces]
    if subject.steps:
        settled = format_seconds(settled_seconds([step.seconds for step in subject.steps]))
        figures.append((f"step, median of {len(subject.steps)}", settled))
    limit = _limit(subject)
    sentences = [_outcome(subject)]
    if limit is not None:
        figures.append(("limited by", limit[0]))
        sentences.append(limit[1])
    return Verdict(sentence=" ".join(sentences), figures=tuple(figures))


def _name(subject: Subject, trace: Trace) -> str:
    shown = trace.batch_size // subject.batch_size
    traced = ", traced" if trace.source == "measured" and subject.steps else ""
    return f"{'step' if shown < 2 else f'{shown} mini-batches'}, {source_word(trace.source)}{traced}"


def _outcome(subject: Subject) -> str:
    predicted, measured = subject.predicted, subject.measured
    if predicted is None or measured is None:
        (trace,) = subject.traces
        verb = "is predicted to take" if trace.source == "simulated" else "took"
        rate = f"{trace.samples_per_second:,.1f} samples/s"
        return f"{_what(subject, trace).capitalize()} {verb} {format_seconds(trace.step_seconds)}: {rate}."
    took = f"{_what(subject, measured).capitalize()} took {format_seconds(measured.step_seconds)}"
    if predicted.batch_size != measured.batch_size:
        return f"{took}. The prediction is of {_what(subject, predicted)}."
    comparison = compare(predicted, measured)
    expected, ratio = format_seconds(predicted.step_seconds), measured.step_seconds / predicted.step_seconds
    if abs(comparison.step_error) <= CLOSE:
        return f"{took}, as predicted ({expected}, {abs(comparison.step_error):.1%} off)."
    slower = ratio > 1
    how = f"{ratio:.1f} times as long as predicted" if slower else f"{1 / ratio:.1f} times as fast as predicted"
    same_way = [one for one in comparison.differences if (one.total_seconds > 0) == slower]
    most = (
        f" Most of it is {KIND_WORDS[same_way[0].kind]}, {subject.stage_name(same_way[0].stage)}." if same_way else ""
    )
    return f"{took}, {how} ({expected}).{most}"


def _what(subject: Subject, trace: Trace) -> str:
    shown = trace.batch_size // subject.batch_size
    return "a step" if shown < 2 else f"{shown} mini-batches"


def _limit(subject: Subject) -> tuple[str, str] | None:
    # The figure, and the sentence, from the run if there is one.
    plan, trace = subject.plan, subject.measured or subject.predicted
    if plan is None or trace is None or not trace.spans or plan.weights != "flush" or not plan.trains:
        return None
    busiest = max(group_shares(plan, trace), key=lambda group: group.computing)
    if busiest.computing >= BUSY:
        return (
            f"the work of {busiest.name}, {busiest.computing:.0%}",
            f"It is limited by the work of {busiest.name}, which computes for {busiest.computing:.0%} of it.",
        )
    waits, share = _longest_wait(busiest)
    return (
        f"waiting, {1 - busiest.computing:.0%}",
        f"Even the busiest devices, those of {busiest.name}, compute for {busiest.computing:.0%} of it: they wait "
        f"{waits} for {share:.0%}.",
    )


def _longest_wait(group: GroupShare) -> tuple[str, float]:
    waits = {"before their first task": group.warm_up, "between tasks": group.between, "after the last": group.drain}
    return max(waits.items(), key=lambda each: each[1])
