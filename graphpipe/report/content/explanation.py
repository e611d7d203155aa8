"""Why a step takes as long as it does: the critical path, the bottleneck, the gap to the bound, and what would help."""

from dataclasses import dataclass

from graphpipe.planners.lower_bound.lower_bound import gap_percent, plans_of_gap
from graphpipe.plans import Plan, Prediction
from graphpipe.plans.estimates import step_overhead_seconds
from graphpipe.report.content.device_groups import device_groups
from graphpipe.report.content.doubtful_costs import doubtful_costs
from graphpipe.report.content.what_if import Outlook, outlooks
from graphpipe.report.content.wording import gap_words
from graphpipe.schedule import Reduce, ReduceTied, Transfer
from graphpipe.simulator.simulate import critical_work
from graphpipe.simulator.simulated_work import HostCopy, MessageHandling, OptimizerStep, SimulatedWork, WeightGather
from graphpipe.trace import COMPUTING, SPAN_WORDS, Trace
from graphpipe.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """The seconds that one kind of work of one stage contributes to the critical path."""

    work: str
    seconds: float
    count: int
    """How many pieces of this work are on the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """How a device that hosts some stages spends a step. The shares add up to 1."""

    name: str
    computing: float
    warm_up: float
    """Seconds until the group's first task."""
    between: float
    """Seconds of waiting between tasks, for messages and reductions too."""
    drain: float
    """Seconds after the group's last task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a reader wants to know of a predicted step."""

    path: tuple[PathShare, ...]
    """The work on the critical path, most seconds first. It adds up to the step."""
    groups: tuple[GroupShare, ...]
    bottleneck: str
    """The stages of the devices that compute for the longest time."""
    gap_percent: float
    """By how many percent the step exceeds a lower bound on the steps of other plans."""
    plans_of_gap: str
    """Which plans the bound covers."""
    outlooks: tuple[Outlook, ...]
    """Changes that were simulated, the best first."""
    doubts: tuple[str, ...]
    """Operators whose costs are less certain than those of others, with why."""

    @property
    def helping(self) -> tuple[Outlook, ...]:
        """The changes that are worth it."""
        return tuple(outlook for outlook in self.outlooks if outlook.gain > _WORTH)

    @property
    def not_helping(self) -> tuple[str, ...]:
        """The changes that were simulated without a gain."""
        return tuple(outlook.change for outlook in self.outlooks if outlook.gain <= _WORTH)


def can_explain(plan: Plan) -> bool:
    """Return whether a plan's step can be explained: it trains, and flushes, because other steps overlap."""
    return plan.trains and plan.weights == "flush"


def explain(plan: Plan, predicted: Trace) -> Explanation:
    """Return the explanation of a plan's predicted step. The changes are simulated, which takes a while.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    groups = group_shares(plan, predicted)
    busiest = max(groups, key=lambda group: group.computing)
    prediction = Prediction(
        step_seconds=predicted.step_seconds,
        bubble_fraction=predicted.bubble_fraction,
        peak_bytes=predicted.peak_bytes,
    )
    number = next(group.stages[0] for group in device_groups(plan) if group.name == busiest.name)
    return Explanation(
        path=_path_shares(plan),
        groups=tuple(groups),
        bottleneck=busiest.name,
        gap_percent=gap_percent(plan, prediction),
        plans_of_gap=plans_of_gap(plan),
        outlooks=tuple(outlooks(plan, bottleneck=number)),
        doubts=tuple(doubtful_costs(plan)),
    )


def explanation_lines(explanation: Explanation, step_seconds: float) -> list[str]:
    """Return the explanation in sentences."""
    shown = [share for at, share in enumerate(explanation.path) if at < _SHOWN or share.work == _BESIDES]
    path = ", ".join(f"{share.work} {share.seconds / step_seconds:.0%}" for share in shown)
    busiest = next(group for group in explanation.groups if group.name == explanation.bottleneck)
    lines = [
        f"critical path: {path}",
        f"bottleneck: {explanation.bottleneck}, which computes {busiest.computing:.0%} of the step",
        f"gap: the step is {gap_words(explanation.gap_percent)} a lower bound on {explanation.plans_of_gap}",
        *(f"would help: {outlook.change}: {_result(outlook)}" for outlook in explanation.helping),
    ]
    worse = ", ".join(explanation.not_helping)
    lines += [f"simulated without a gain: {worse}"] if worse else []
    return lines + [f"uncertain: {doubt}" for doubt in explanation.doubts]


def _result(outlook: Outlook) -> str:
    return f"step {format_seconds(outlook.step_seconds)}, {outlook.gain:+.1%} samples/s"


_SHOWN = 4
"""Kinds of work of the critical path that are named."""
_BESIDES = "what ranks do besides"
_WORTH = 0.005
"""Smaller gains are not worth a change."""


def _path_shares(plan: Plan) -> tuple[PathShare, ...]:
    seconds: dict[str, list[float]] = {}
    for what, when in critical_work(plan):
        seconds.setdefault(_work_name(plan, what), []).append(when.end - when.start)
    if step_overhead_seconds(plan):
        seconds[_BESIDES] = [step_overhead_seconds(plan)]
    shares = [PathShare(work=name, seconds=sum(times), count=len(times)) for name, times in seconds.items()]
    return tuple(sorted(shares, key=lambda share: -share.seconds))


def _work_name(plan: Plan, what: SimulatedWork) -> str:
    match what:
        case Transfer():
            edge = plan.edges[what.edge]
            return f"messages between {plan.stages[edge.source].name} and {plan.stages[edge.target].name}"
        case MessageHandling():
            return "handling of messages"
        case HostCopy():
            return f"{SPAN_WORDS[what.kind]} of {plan.stages[what.stage].name}"
        case Reduce():
            return f"sum of gradients of {plan.stages[what.stage].name}"
        case ReduceTied():
            return "sum of shared gradients"
        case WeightGather():
            return f"gather of weights of {plan.stages[what.stage].name}"
        case OptimizerStep():
            return "optimizer"
        case (_, task):
            word = "update" if task.kind == "U" else SPAN_WORDS[task.kind]
            return f"{word} of {plan.stages[task.stage].name}"


def group_shares(plan: Plan, trace: Trace) -> list[GroupShare]:
    """Return how one device of each group of stages spends a step, in the order of the stages."""
    shares: list[GroupShare] = []
    step = trace.step_seconds or 1.0
    for group in device_groups(plan):
        tasks = [
            (span.start_seconds, span.end_seconds)
            for span in trace.spans
            if span.device == group.devices[0] and span.kind in COMPUTING
        ]
        first, last = min(start for start, _ in tasks), max(end for _, end in tasks)
        computing = sum(end - start for start, end in tasks)
        shares.append(
            GroupShare(
                name=group.name,
                computing=computing / step,
                warm_up=first / step,
                between=max(0.0, last - first - computing) / step,
                drain=(step - last) / step,
            )
        )
    return shares
