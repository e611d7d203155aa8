"""A step of a few samples on one stage alone: all samples at once, or divided as the plan divides them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphpipe.equivalence.steps.check_subject import CheckSubject, seed_all
from graphpipe.equivalence.steps.own_values import own_values
from graphpipe.equivalence.steps.plain_step import as_mean, changed, changing, outputs_of, without_compiled
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.device.fixed_draws import FixedDraws
from graphpipe.run.initial_weights.host_tensors import fill_stage
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.stage.losses.fixed_gradient import fixed_gradient
from graphpipe.run.stage.losses.sample_loss import loss_of
from graphpipe.run.stage.mini_batch import MiniBatch

SENT = "sent on: "
"""Before the name of a value that a stage sends on, among the outputs of its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSubject:
    """A stage that is checked alone."""

    subject: CheckSubject
    programs: tuple[ModuleStage, ...]
    """Of all stages."""
    stage: int
    received: Mapping[str, Tensor]
    """What it receives of all samples, by name."""
    source: WeightSource | None = None
    """Of its weights, if the model has no data; None: those of its constructors."""

    @property
    def program(self) -> ModuleStage:
        """The program of the stage."""
        return self.programs[self.stage]

    @property
    def rows(self) -> int:
        """Samples of a micro-batch on one replica."""
        stage = self.subject.plan.stages[self.stage]
        return stage.micro_batch // stage.degree


def stage_step(stage: StageSubject, *, divided: bool) -> StepRecord:
    """Return what a stage computes of the samples, given what it receives and fixed gradients of what it sends.

    Args:
        stage: to be run.
        divided: whether the samples are divided into micro-batches; otherwise they come all at once.
    """
    fill_stage(stage.subject.model, stage.programs, stage.stage, stage.source, stage.subject.seed)
    given, program = stage.subject.in_precision(), stage.program
    modules = [program.module, *(each for each in given.modules if each is not given.model)]
    draws, size = FixedDraws(double=given.double), given.plan.batch_size
    with own_values(modules, given.tensors, double=given.double), without_compiled():
        before = changing(program.module)
        values = {name: given.inputs[name] for name in program.model_inputs}
        values |= {name: _like(each, given) for name, each in stage.received.items()}
        seed_all(given.seed)
        start = time.perf_counter()
        with draws:
            ranges = [SampleRange(at, at + stage.rows) for at in range(0, size, stage.rows)]
            parts = [_forward(stage, given, values, rows) for rows in (ranges if divided else [SampleRange(0, size)])]
            loss = _loss(given, parts, size) if program.is_output else None
            _backward(parts, loss)
        seconds = time.perf_counter() - start
        outputs = {SENT + name: torch.cat([each.sent[name].detach() for each in parts]) for name in parts[0].sent}
        if program.is_output and not divided:
            outputs |= outputs_of(parts[0].result, size)
        gradients = {
            program.parameter_names[name]: each.grad
            for name, each in program.module.named_parameters()
            if each.requires_grad
        }
        module, names = program.module, (program.parameter_names, program.buffer_names)
        now = dict[str, Tensor](module.named_parameters()), dict[str, Tensor](module.named_buffers())
        parameters, buffers = (
            {named.get(name, name): value for name, value in changed(old, new).items()}
            for named, new, old in zip(names, now, before, strict=True)
        )
        return StepRecord(
            loss=0.0 if loss is None else loss.detach().item(),
            outputs=outputs,
            gradients=gradients | {f"{name} (received)": each for name, each in _received_gradients(parts).items()},
            others={},
            parameters=parameters,
            buffers=buffers,
            drawn=tuple(draws.drawn),
            seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    rows: SampleRange
    received: dict[str, Tensor]
    """The values that get a gradient."""
    sent: dict[str, Tensor]
    result: Any


def _forward(stage: StageSubject, given: CheckSubject, values: Mapping[str, Tensor], rows: SampleRange) -> _Part:
    program = stage.program
    needing = {spec.name for specs in program.receives.values() for spec in specs if spec.requires_grad}
    own = {name: value[rows.start : rows.stop].detach().clone() for name, value in values.items()}
    leaves = {name: own[name].requires_grad_() for name in own.keys() & needing if own[name].is_floating_point()}
    # A stage may write into what it gets, which a leaf does not allow.
    sent, result = program({name: value.view_as(value) * 1 if name in leaves else value for name, value in own.items()})
    return _Part(rows, leaves, sent, result)


def _loss(given: CheckSubject, parts: list[_Part], size: int) -> Tensor:
    if len(parts) == 1 and len(parts[0].rows) == size:
        return as_mean(given.loss_fn(parts[0].result, given.targets))
    batch = MiniBatch(
        inputs=given.inputs,
        targets=given.targets,
        size=size,
        micro_batches=(),
        key=(given.seed, 0),
        training=False,
        specs={},
        check_finite=False,
    )
    device = next(iter(given.inputs.values())).device
    found = [loss_of(given.loss_fn, each.result, batch, each.rows, device) for each in parts]
    total = torch.stack([each.loss * len(part.rows) / size for each, part in zip(found, parts, strict=True)]).sum()
    weights = [each.weight for each in found if each.weight is not None]
    return total * size / torch.stack(weights).sum().to(total) if weights else total


def _backward(parts: list[_Part], loss: Tensor | None) -> None:
    roots: list[Tensor] = [] if loss is None or not loss.requires_grad else [loss]
    gradients: list[Tensor | None] = [None] * len(roots)
    for part in parts:
        for value in part.sent.values():
            if value.requires_grad:
                roots.append(value)
                gradients.append(fixed_gradient(value, part.rows.start))
    if roots:
        torch.autograd.backward(roots, gradients)


def _received_gradients(parts: list[_Part]) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    for name in parts[0].received:
        rows = [part.received[name].grad for part in parts]
        known = [each for each in rows if each is not None]
        found[name] = torch.cat(known) if len(known) == len(rows) else None
    return found


def _like(value: Tensor, given: CheckSubject) -> Tensor:
    return value.double() if given.double and value.is_floating_point() else value


def in_single(stage: StageSubject) -> StageSubject:
    """Return the same, computed in single precision."""
    return replace(stage, subject=replace(stage.subject, double=False))
