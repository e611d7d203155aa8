"""The check of a model that does not fit in memory: each stage that fits is checked alone, one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from graphpipe.equivalence.check import batch_statistics, bytes_needed
from graphpipe.equivalence.compare import differences
from graphpipe.equivalence.deviation import Deviation
from graphpipe.equivalence.small_plan import small_plan
from graphpipe.equivalence.steps.check_subject import CheckSubject
from graphpipe.equivalence.steps.isolated import Ended, isolated
from graphpipe.equivalence.steps.stage_step import SENT, StageSubject, in_single, stage_step
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.host_memory import available_host_bytes
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.model.split.split import build_stages, capture_for, submodules_for
from graphpipe.plans import Plan
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.tensor_tree import map_tensors
from graphpipe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChecked:
    """What was found of one stage."""

    stage: str
    """Its name."""
    differences: tuple[Deviation, ...] = ()
    """What differs where its samples are divided into micro-batches."""
    skipped: str = ""
    """Why it was not checked; empty if it was."""

    @property
    def equal(self) -> bool:
        """Whether it was checked and nothing differs."""
        return not (self.differences or self.skipped)

    def __str__(self) -> str:
        """Return the result as a sentence without a full stop."""
        if self.skipped:
            return f"stage '{self.stage}' was not checked: {self.skipped}"
        if self.differences:
            found = "; ".join(each.sentence for each in self.differences[:2])
            return f"stage '{self.stage}' computes otherwise where its samples are divided into micro-batches: {found}"
        return f"stage '{self.stage}' alone computes the same in micro-batches"


def check_stages(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    targets: Any = None,
    *,
    captured: Captured | None = None,
    source: WeightSource | None = None,
    seed: int = 0,
    timeout_seconds: float = 300.0,
) -> tuple[StageChecked, ...]:
    """Check each stage of a plan that fits in memory, without the others.

    A stage computes a few samples all at once, and as the plan divides them: what it sends on, the loss, gradients for
    fixed gradients of what it sends, buffers, and parameters that the forward changes. It gets what the stages before
    it have sent. Whether the model was captured as it is cannot be seen in this way, nor what happens at a cut.

    Args:
        plan: for the model.
        model: with data, or without: then each stage gets weights of its own for its check.
        loss_fn: as for `check`.
        inputs: as for `check`.
        targets: of the same samples.
        captured: as for `check`.
        source: of the weights, if the model has no data; None: those of its constructors.
        seed: of weights that are drawn.
        timeout_seconds: after which a stage is ended.

    Raises:
        InvalidInput: the model does not fit the plan.
    """
    small, graph = small_plan(plan), plan.graph
    known = split_like(captured, graph) if captured else capture_for(model, graph)
    count = small.batch_size
    subject = CheckSubject(
        plan=small,
        model=model,
        loss_fn=loss_fn,
        inputs={name: each[:count] for name, each in name_inputs(graph.input_layout, inputs).items()},
        targets=map_tensors(targets, lambda each: each[:count]),
        captured=known,
        seed=seed,
    )
    programs = build_stages(model, small, known, submodules_for(model, graph))
    sent: dict[str, Tensor] = {}
    found: dict[int, StageChecked] = {}
    for number in range(len(small.stages)):  # in topological order
        wanted = [spec for specs in programs[number].receives.values() for spec in specs]
        if missing := next((spec.name for spec in wanted if spec.name not in sent), None):
            found[number] = _skipped(small, number, f"what it receives ('{missing}') comes from a stage that was not")
            continue
        received = {spec.name: sent[spec.name].to(spec.dtype) for spec in wanted}
        stage = StageSubject(subject=subject, programs=programs, stage=number, received=received, source=source)
        found[number], values = _checked(stage, timeout_seconds)
        sent |= values
    return tuple(found[number] for number in range(len(small.stages)))


def _checked(stage: StageSubject, seconds: float) -> tuple[StageChecked, Mapping[str, Tensor]]:
    plan, number = stage.subject.plan, stage.stage
    if (needed := bytes_needed(stage.program.module)) > (free := available_host_bytes()):
        why = f"it takes {format_bytes(needed)} for weights and gradients, {format_bytes(free)} are free"
        return _skipped(plan, number, why), {}
    reason = ""
    for each in (stage, in_single(stage)):
        plain = isolated(partial(stage_step, each, divided=False), seconds)
        if isinstance(plain, Ended):
            reason = plain.reason
            continue
        cut = isolated(partial(stage_step, each, divided=True), seconds)
        values = {name.removeprefix(SENT): value for name, value in plain.outputs.items() if name.startswith(SENT)}
        return StageChecked(stage=plan.stages[number].name, differences=_differences(each, plain, cut)), values
    return _skipped(plan, number, f"a step of it {reason}"), {}


def _differences(stage: StageSubject, plain: StepRecord, cut: StepRecord | Ended) -> tuple[Deviation, ...]:
    if isinstance(cut, Ended):
        return (Deviation(kind="error", name=cut.reason),)
    found = differences(plain, cut, stage.subject.plan.graph, batch_statistics(stage.subject.model))
    return tuple(
        replace(each, kind="value", name=each.name.removeprefix(SENT)) if each.name.startswith(SENT) else each
        for each in found
    )


def _skipped(plan: Plan, number: int, why: str) -> StageChecked:
    return StageChecked(stage=plan.stages[number].name, skipped=why)
