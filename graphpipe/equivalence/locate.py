"""At which level a pipeline begins to differ, and at which operator first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from graphpipe.equivalence.deviation import Deviation
from graphpipe.equivalence.equivalence import Level
from graphpipe.equivalence.small_plan import one_stage, smallest_micro_batch
from graphpipe.equivalence.steps.check_subject import CheckSubject
from graphpipe.equivalence.steps.cut_step import cut_step
from graphpipe.equivalence.steps.isolated import Ended, isolated
from graphpipe.equivalence.steps.plain_step import plain_step
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.equivalence.steps.watched_values import GRADIENT
from graphpipe.plans import Plan

Compare = Callable[[StepRecord, StepRecord], tuple[Deviation, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pipeline begins to differ."""

    level: Level
    differences: tuple[Deviation, ...]
    """What differs at this level."""
    first: str
    """The first operator or parameter in the order of the forward that differs; empty if there is none."""
    behind: str
    """The last submodule in the order of the forward at which another gradient arrives; empty if there is none."""


def locate(subject: CheckSubject, found: Sequence[Deviation], compare: Compare, seconds: float) -> Place:
    """Return where the pipeline begins to differ: as captured, in micro-batches, or cut.

    Args:
        subject: what differs.
        found: the differences of its own plan.
        compare: a plain step with one of a pipeline.
        seconds: after which a step is ended.
    """
    watched = replace(subject, watched=True)
    plain = isolated(partial(plain_step, watched), seconds)
    for level, plan in _levels(subject.plan):
        record = isolated(partial(cut_step, watched, plan), seconds)
        if isinstance(record, Ended):
            here: tuple[Deviation, ...] = (Deviation(kind="error", name=record.reason),)
        else:
            here = compare(plain, record) if isinstance(plain, StepRecord) else ()
        if here:
            return _place(level, here, plain, record, compare)
    return _place("cut", tuple(found), plain, None, compare)


def _levels(plan: Plan) -> list[tuple[Level, Plan]]:
    levels: list[tuple[Level, Plan]] = [("capture", one_stage(plan, plan.batch_size))]
    rows = smallest_micro_batch(plan)
    if rows < plan.batch_size and not any(op.whole_batch for op in plan.graph.ops):
        levels.append(("micro-batches", one_stage(plan, rows)))
    return levels


def _place(
    level: Level,
    found: tuple[Deviation, ...],
    plain: StepRecord | Ended,
    record: StepRecord | Ended | None,
    compare: Compare,
) -> Place:
    paths: list[str] = []
    if isinstance(plain, StepRecord) and isinstance(record, StepRecord):
        paths = _differing(plain, record, compare)
    values = [path for path in paths if not path.startswith(GRADIENT)]
    gradients = [path.removeprefix(GRADIENT) for path in paths if path.startswith(GRADIENT)]
    named = [each.operator or each.name for each in found if each.kind not in ("output", "loss", "error")]
    return Place(
        level=level,
        differences=found,
        first=next(iter([*values, *named]), ""),
        behind=gradients[-1] if gradients and not values else "",
    )


def _differing(plain: StepRecord, record: StepRecord, compare: Compare) -> list[str]:
    # The submodules whose results or gradients differ, in the order of the forward.
    common = [path for path in plain.values if path in record.values]
    one = replace(plain, outputs={path: plain.values[path] for path in common}, loss=0.0)
    other = replace(record, outputs={path: record.values[path] for path in common}, loss=0.0)
    away = {each.name for each in compare(one, other) if each.kind == "output"}
    return [path for path in common if path in away and plain.values[path].shape == record.values[path].shape]
