"""The panels about a run, and about the plans of other planners."""

from graphpipe.report.content.subject import Subject
from graphpipe.report.content.summary import Outcome
from graphpipe.report.figures.planners_figure import planners_figure
from graphpipe.report.figures.training_figure import loss_figure, throughput_figure
from graphpipe.report.page.html_page import figure, note, table
from graphpipe.report.page.panel import Panel
from graphpipe.units import format_bytes, format_seconds

MOST_EVALUATIONS = 20


def _training(subject: Subject) -> str | None:
    """Return loss and throughput of a run."""
    if not subject.steps:
        return None
    rates = throughput_figure(subject.steps, subject.batch_size)
    losses = loss_figure(subject.steps, subject.evaluations)
    return (
        figure("loss-figure", "Loss of every step, and of the held-out samples", losses)
        + figure("throughput-figure", "Samples per second of every step", rates)
        + _evaluations(subject)
    )


def _evaluations(subject: Subject) -> str:
    # A table of the figures that evaluations have, at most the first and the last of many.
    given, most = subject.evaluations, MOST_EVALUATIONS
    if not given:
        return ""
    shown = given if len(given) <= most else (*given[: most // 2], *given[-most // 2 :])
    names = list(dict.fromkeys(name for each in given for name in each.metrics))
    rows = [
        [str(each.step), _number(each.loss), *(_number(each.metrics.get(name)) for name in names)] for each in shown
    ]
    left = f", {len(shown)} of {len(given)}" if len(shown) < len(given) else ""
    return table(f"Evaluations of the held-out samples{left}", ("steps done", "loss", *names), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _planners(subject: Subject) -> str | None:
    """Return a comparison of planners."""
    if not subject.planners:
        return None
    rates = {row.planner: row.summary.samples_per_second for row in subject.planners if row.summary}
    headings = ("planner", "status", "step", "samples/s", "of the best", "stages", "depth", "bubble", "peak", "search")
    rows = [_row(outcome, max(rates.values(), default=0.0)) for outcome in subject.planners]
    chart = figure(
        "planners-figure", "Throughput of each planner. The table below has the same data.", planners_figure(rates)
    )
    reasons = "".join(note(f"{row.planner}: {row.reason}") for row in subject.planners if row.reason)
    return (chart if rates else "") + table("Results of the planners", headings, rows, words=2) + reasons


def _row(outcome: Outcome, best: float) -> list[str]:
    if (summary := outcome.summary) is None:
        return [outcome.planner, outcome.status, *["-"] * 8]
    return [
        outcome.planner,
        outcome.status,
        format_seconds(summary.step_seconds),
        f"{summary.samples_per_second:,.1f}",
        f"{summary.samples_per_second / best:.0%}" if best else "-",
        str(summary.stages),
        str(summary.depth),
        f"{summary.bubble_fraction:.1%}",
        format_bytes(max(summary.peak_bytes)),
        format_seconds(summary.search_seconds),
    ]


TRAINING = Panel(name="training", title="Training", build=_training)
PLANNERS = Panel(name="planners", title="Planners", build=_planners)
