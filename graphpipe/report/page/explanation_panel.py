"""The panel that explains a predicted step."""

from graphpipe.report.content.explanation import Explanation, can_explain, explain
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import gap_words
from graphpipe.report.page.html_page import note, table
from graphpipe.report.page.panel import Panel
from graphpipe.units import format_seconds


def _explanation(subject: Subject) -> str | None:
    """Return the critical path, the bottleneck, the shares of waiting, and what would help."""
    plan, predicted = subject.plan, subject.predicted
    if plan is None or predicted is None or not predicted.step_seconds or not predicted.spans:
        return None
    if not can_explain(plan):
        return None
    explanation = explain(plan, predicted)
    return (
        note(
            f"The devices of {explanation.bottleneck} compute for the longest time. The step is "
            f"{gap_words(explanation.gap_percent)} a lower bound on {explanation.plans_of_gap}, on these devices. "
            "Only a change of what is on the critical path can shorten the step."
        )
        + _path(explanation, predicted.step_seconds)
        + _groups(explanation)
        + _outlooks(explanation)
    )


def _path(explanation: Explanation, step: float) -> str:
    rows = [
        [share.work, str(share.count), format_seconds(share.seconds), f"{share.seconds / step:.0%}" if step else "-"]
        for share in explanation.path
    ]
    return table("The critical path, from start to end without a gap", ("work", "times", "in all", "of the step"), rows)


def _groups(explanation: Explanation) -> str:
    rows = [
        [group.name, *(f"{share:.0%}" for share in (group.computing, group.warm_up, group.between, group.drain))]
        for group in explanation.groups
    ]
    headings = ("stages", "computing", "waits: warm-up", "waits: between tasks", "waits: drain")
    return table("How one device of each stage spends the step", headings, rows)


def _outlooks(explanation: Explanation) -> str:
    rows = [[item.change, format_seconds(item.step_seconds), f"{item.gain:+.1%}"] for item in explanation.helping]
    return table("What would help: each change was simulated", ("with", "step", "samples/s"), rows) if rows else ""


EXPLANATION = Panel(name="explanation", title="Why it takes this long", build=_explanation)
