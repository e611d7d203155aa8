"""The check: whether a plan trains a model as plain PyTorch does, found by training a few samples both ways."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from graphpipe.equivalence.compare import Noise, differences
from graphpipe.equivalence.deviation import Deviation
from graphpipe.equivalence.equivalence import Equivalence
from graphpipe.equivalence.locate import locate
from graphpipe.equivalence.remedies import advice, notes
from graphpipe.equivalence.small_plan import small_plan
from graphpipe.equivalence.steps.check_subject import CheckSubject
from graphpipe.equivalence.steps.cut_step import cut_step
from graphpipe.equivalence.steps.doubtful_rows import MOST, ROWS, doubtful_rows
from graphpipe.equivalence.steps.isolated import Ended, isolated
from graphpipe.equivalence.steps.plain_step import plain_step
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.errors import InvalidInput
from graphpipe.graph import parameter_of
from graphpipe.host_memory import available_host_bytes
from graphpipe.model.capture.capture import Captured
from graphpipe.model.hidden.compiled_modules import eagerly
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.plans import Plan
from graphpipe.run.initial_weights.filled_copy import filled_copy, lacks_data
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import check_rows
from graphpipe.units import format_bytes

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class NotChecked(InvalidInput):
    """Raised if nothing can be compared, because a step in plain PyTorch cannot be done here."""


class TooLarge(NotChecked):
    """Raised if the reason is memory: `check_stages` then checks the stages that fit."""


_STRUCTURE = ("none", "zero", "untrained", "missing", "elsewhere", "error")
"""Differences that rounding cannot explain."""


def check(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    targets: Any = None,
    *,
    captured: Captured | None = None,
    timeout_seconds: float = 300.0,
) -> Equivalence:
    """Train a few samples in plain PyTorch and as a plan cuts and divides them, and return whether both agree.

    They are compared in the loss, outputs, gradients (None is not zero), buffers, parameters that the forward changes,
    and trainable tensors that the loss reaches. The model, the loss and all random generators are left as they are. The
    steps run in processes of their own, where the system allows it, so that a crash there ends nothing else. They begin
    with the same random numbers, dropout is off, and batch norm uses the statistics that it holds. docs/checks.md says
    what cannot be compared.

    Args:
        plan: for the model. The fewest samples that divide as it does are trained, with at least two micro-batches for
            every stage that has more than one.
        model: as for `Pipeline`.
        loss_fn: as for `Pipeline`.
        inputs: of at least these samples, as for `Pipeline.step`; better of a whole mini-batch. The first ones are
            taken. If some of the first 16 have other outputs alone than together, one of these and one of the others.
        targets: of the same samples.
        captured: the model as it was captured for the plan, if it is at hand. None captures the model again.
        timeout_seconds: after which a step is ended.

    Raises:
        InvalidInput: there are too few samples, the model does not fit the plan, or the pipeline refuses the model.
        NotChecked: the model does not train in plain PyTorch. TooLarge: it does not fit in memory.
    """
    with eagerly(model):
        return _Check(
            subject=_subject(plan, model, loss_fn, inputs, targets, captured, timeout_seconds),
            batch_size=plan.batch_size,
            start=time.perf_counter(),
            seconds=timeout_seconds,
        ).result()


def _subject(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    targets: Any,
    captured: Captured | None,
    seconds: float,
) -> CheckSubject:
    plan.require_training()
    small = small_plan(plan)
    named = name_inputs(plan.graph.input_layout, inputs)
    given, count = check_rows(named, targets), small.batch_size
    if given < count:
        raise InvalidInput(
            f"{given} samples were given, the plan divides at least {count}",
            where="check",
            remedy="Give a whole mini-batch of the plan.",
        )
    check_memory(model)
    if lacks_data(model):
        model = filled_copy(model, None, 0)
    subject = CheckSubject(plan=small, model=model, loss_fn=loss_fn, inputs=named, targets=targets, captured=captured)
    chosen = isolated(partial(doubtful_rows, subject.of_rows(range(min(given, max(count, MOST))))), seconds)
    return subject.of_rows(range(count) if isinstance(chosen, Ended) else chosen.outputs[ROWS].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    subject: CheckSubject
    batch_size: int
    """Of the plan for the whole mini-batch."""
    start: float
    seconds: float

    def result(self) -> Equivalence:
        """Return the result."""
        subject, plain = self._plain()
        found = self._found(subject, plain)
        if not found and plain.remembers:
            second = replace(subject, again=True)
            again = isolated(partial(plain_step, second), self.seconds)
            if isinstance(again, StepRecord) and (found := self._found(second, again)):
                subject, plain = second, again
        made = partial(
            Equivalence,
            samples=subject.plan.batch_size,
            micro_batches=tuple(map(subject.plan.micro_batches, range(len(subject.plan.stages)))),
            precision="double" if subject.double else "single",
            plain_seconds=plain.seconds,
            notes=notes(plain, single=not subject.double),
        )
        if not found:
            return made(differences=(), check_seconds=self._elapsed)
        if not self._repeats(subject, plain):
            return made(differences=found, repeats=False, remedy=advice(None), check_seconds=self._elapsed)
        place = locate(subject, found, self._differences_of_records, self.seconds)
        return made(
            differences=place.differences,
            level=place.level,
            first=place.first,
            remedy=advice(place, batch_size=self.batch_size, again=subject.again),
            check_seconds=self._elapsed,
        )

    def _found(self, subject: CheckSubject, plain: StepRecord) -> tuple[Deviation, ...]:
        # The differences of a step as the plan divides and cuts it.
        cut = self._cut(subject)
        found = self._differences(plain, cut)
        if found and not isinstance(cut, Ended) and all(each.kind not in _STRUCTURE for each in found):
            found = self._confirmed(subject, plain, cut, found)
        return found

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self.start

    def _plain(self) -> tuple[CheckSubject, StepRecord]:
        # In double precision if the model allows it.
        ended: Ended | None = None
        for subject in (self.subject, replace(self.subject, double=False)):
            plain = isolated(partial(plain_step, subject), self.seconds)
            if isinstance(plain, Ended):
                ended = plain
            elif _finite(plain):
                return subject, plain
        ended = ended or Ended(reason="gives a loss or a gradient that is NaN or infinite")
        raise NotChecked(
            f"a step in plain PyTorch {ended.reason}",
            where="check",
            remedy="Mend the model, the loss or the samples first.",
        )

    def _cut(self, subject: CheckSubject) -> StepRecord | Ended:
        found = isolated(partial(cut_step, subject, subject.plan), self.seconds)
        if isinstance(found, Ended) and found.refused:
            raise InvalidInput(found.reason.rstrip("."))
        return found

    def _differences(
        self, plain: StepRecord, cut: StepRecord | Ended, noise: Noise | None = None
    ) -> tuple[Deviation, ...]:
        if isinstance(cut, Ended):
            return (Deviation(kind="error", name=cut.reason),)
        plan = self.subject.plan
        found = differences(plain, cut, plan.graph, batch_statistics(self.subject.model), noise)
        return (*found, *_read_elsewhere(plain, plan))

    def _differences_of_records(self, plain: StepRecord, cut: StepRecord) -> tuple[Deviation, ...]:
        # At a level where all is in one stage, nothing is elsewhere.
        return tuple(each for each in self._differences(plain, cut) if each.kind != "elsewhere")

    def _confirmed(
        self, subject: CheckSubject, plain: StepRecord, cut: StepRecord, found: tuple[Deviation, ...]
    ) -> tuple[Deviation, ...]:
        # In double precision, a captured model that holds single-precision values may differ by more than rounding.
        if any(each.dtype is torch.float64 for each in subject.model.parameters()):
            return found
        single = replace(subject, double=False)
        if subject.double:
            both = partial(plain_step, single), partial(cut_step, single, single.plan)
            steps = [isolated(step, self.seconds) for step in both]
        else:
            steps = [plain, cut]
        shaken = isolated(partial(plain_step, replace(single, shaken=True)), self.seconds)
        one, other = steps
        if not (isinstance(one, StepRecord) and isinstance(other, StepRecord) and isinstance(shaken, StepRecord)):
            return found
        confirmed = self._differences(one, other, Noise(first=one, second=shaken))
        return found if confirmed else ()

    def _repeats(self, subject: CheckSubject, plain: StepRecord) -> bool:
        again = isolated(partial(plain_step, replace(subject, seed=subject.seed + 1)), self.seconds)
        return isinstance(again, Ended) or not self._differences_of_records(plain, again)


def check_memory(model: nn.Module) -> None:
    """Check that there is memory for a check.

    Raises:
        TooLarge: there is too little.
    """
    if (needed := bytes_needed(model)) > (free := available_host_bytes()):
        raise TooLarge(
            f"the model takes {format_bytes(needed)} for weights and gradients, {format_bytes(free)} are free",
            where="check",
            remedy="Check the same model with fewer layers, or on a machine with more memory.",
        )


def bytes_needed(model: nn.Module) -> float:
    """Return the bytes that a check takes at least: weights and gradients in double precision, of both steps."""
    return 4.0 * torch.float64.itemsize * sum(each.numel() for each in model.parameters())


def _read_elsewhere(plain: StepRecord, plan: Plan) -> list[Deviation]:
    # On the rank of the last stage, these parameters are copies that nobody trains.
    held: dict[str, set[int]] = {}
    owners: dict[str, str] = {}
    for stage in plan.stages:
        for op in stage.ops:
            for name in map(parameter_of, plan.graph[op].parameters):
                held.setdefault(name, set()).update(stage.devices)
                owners.setdefault(name, op)
    last = {device for n, stage in enumerate(plan.stages) if not plan.successors[n] for device in stage.devices}
    return [
        Deviation(kind="elsewhere", name=name, operator=owners[name])
        for name in plain.read_by_loss
        if name in held and not held[name] & last
    ]


def _finite(record: StepRecord) -> bool:
    gradients = [each for each in record.gradients.values() if each is not None]
    return all(bool(torch.isfinite(each).all()) for each in gradients) and record.loss - record.loss == 0.0


def batch_statistics(model: nn.Module) -> list[str]:
    """Return the buffers of norms over the batch, which count micro-batches and average over them in every pipeline."""
    return [
        f"{path}.{name}" if path else name
        for path, part in model.named_modules()
        if isinstance(part, _NORMS)
        for name in _STATISTICS
    ]
