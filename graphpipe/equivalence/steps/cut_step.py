"""A step of a few samples as a plan cuts and divides it, on one process that plays all devices."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from graphpipe.equivalence.steps.check_subject import CheckSubject, labels, seed_all
from graphpipe.equivalence.steps.own_values import own_values
from graphpipe.equivalence.steps.plain_step import (
    changed,
    changing,
    other_name,
    outputs_of,
    put_back,
    watching,
    without_compiled,
)
from graphpipe.equivalence.steps.reached_leaves import reached_leaves
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.equivalence.steps.watched_values import joined
from graphpipe.errors import GraphPipeError
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.inputs import with_containers
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split import build_stages, capture_for, submodules_for
from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans import Plan
from graphpipe.plans.stage import Stage
from graphpipe.run.device.fixed_draws import FixedDraws, doubled
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.losses.divided_forward import only_named
from graphpipe.run.stage.tensor_tree import leaves
from graphpipe.run.step.pipeline_options import PipelineOptions


def cut_step(subject: CheckSubject, plan: Plan) -> StepRecord:
    """Return what a pipeline computes in one step of the samples.

    Args:
        subject: the model, the loss and the samples.
        plan: for these samples. It may cut and divide otherwise than the subject's.

    Raises:
        InvalidInput: the pipeline refuses the model or the plan.
        GraphPipeError: a stage reads a parameter that only other devices train.
    """
    model, graph = subject.model, plan.graph
    captured = split_like(subject.captured, graph) if subject.captured else capture_for(model, graph)
    given, draws = subject.in_precision(), FixedDraws(double=subject.double)
    with own_values(given.modules, given.tensors, double=given.double), without_compiled(), watching(given) as values:
        programs = build_stages(model, plan, captured, submodules_for(model, graph))
        if given.double:
            programs = tuple(map(_in_double, programs))
        before = [changing(each.module) for each in programs]
        owners = _owners(programs, plan)
        for number, each in enumerate(programs):
            each.module.register_forward_hook(_checking(owners, {*plan.stages[number].devices}))
        last = next(number for number, each in enumerate(programs) if each.is_output)
        outputs = _RecordedOutputs(programs[last], plan.stages[last], plan.batch_size)
        device = next(iter(given.inputs.values())).device
        held: list[_Held] = []
        options = PipelineOptions(device=device, check_finite=False, alone=True)
        seed_all(given.seed)
        with (
            draws,
            only_named(),
            Pipeline(_counting_nothing(plan), programs, given.loss_fn, _holding(held), options=options) as pipe,
        ):
            mini_batch = with_containers(graph.input_layout, given.inputs), given.targets
            if given.again:
                pipe.step(*mini_batch)
                for each, old in zip(programs, before, strict=True):
                    put_back(each.module, old)
                values.clear()
                outputs.forget()
                seed_all(given.seed)
            start = time.perf_counter()
            loss = pipe.step(*mini_batch)
            seconds = time.perf_counter() - start
            gradients, others = pipe.gradients(), _others(held, model, given.loss_fn)
        paths = {id(module): path for path, module in model.named_modules()}
        state = [
            (
                {each.parameter_names[name]: value for name, value in changed(old[0], _named(each, 0)).items()},
                {_buffer(each, name, paths): value for name, value in changed(old[1], _named(each, 1)).items()},
            )
            for each, old in zip(programs, before, strict=True)
        ]
        return StepRecord(
            loss=loss,
            outputs=outputs.joined(),
            gradients=gradients,
            others=others,
            parameters={name: value for parameters, _ in state for name, value in parameters.items()},
            buffers={name: value for _, buffers in state for name, value in buffers.items()},
            values=joined(values),
            drawn=tuple(draws.drawn),
            seconds=seconds,
        )


def _named(program: ModuleStage, kind: int) -> dict[str, Tensor]:
    module = program.module
    return dict(module.named_buffers() if kind else module.named_parameters())


def _buffer(program: ModuleStage, name: str, paths: Mapping[int, str]) -> str:
    # The name in the model, also of a buffer that the forward has made: a table for the next calls.
    if name in program.buffer_names:
        return program.buffer_names[name]
    holder, _, own = name.rpartition(".")
    return f"{paths.get(id(program.module.get_submodule(holder)), holder)}.{own}"


def _counting_nothing(plan: Plan) -> Plan:
    # The precision is that of the bytes which the plan counts. Here all values are in the precision of the step.
    if plan.graph.origin is None:
        return plan
    graph = replace(plan.graph, origin=replace(plan.graph.origin, precision="fp32"))
    return replace(plan, graph=graph, costs=replace(plan.costs, graph_fingerprint=graph.fingerprint))


def _in_double(program: ModuleStage) -> ModuleStage:
    constants = {name: value for name, value in vars(program.module).items() if isinstance(value, Tensor)}
    for name, value in constants.items():  # of the forward, such as the scale of a distribution
        setattr(program.module, name, value.to(doubled(value.dtype)))
    return replace(
        program,
        receives=_edges_in_double(program.receives),
        sends=_edges_in_double(program.sends),
        output_dtypes=(),
    )


def _edges_in_double(edges: Mapping[int, tuple[ValueSpec, ...]]) -> dict[int, tuple[ValueSpec, ...]]:
    return {edge: tuple(replace(spec, dtype=doubled(spec.dtype)) for spec in specs) for edge, specs in edges.items()}


class _Held(Optimizer):
    """An optimizer that changes nothing, but has the parameters that would be trained."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Change nothing."""


def _holding(held: list[_Held]) -> Any:
    def build(parameters: list[nn.Parameter]) -> Optimizer:
        held.append(_Held(parameters))
        return held[-1]

    return build


def _others(held: Sequence[_Held], model: nn.Module, loss_fn: object) -> dict[str, Tensor | None]:
    # Gradients of what is trained and is not the model's, such as parameters of the loss.
    names, known = labels(loss_fn), {id(each) for each in model.parameters()}
    trained = [each for one in held for group in one.param_groups for each in group["params"]]
    return {other_name(each, names): each.grad for each in trained if id(each) in names and id(each) not in known}


_Owners = dict[int, tuple[str, set[int]]]
"""By the id of a parameter: its name, and the devices of the stages that hold it."""


def _owners(programs: Sequence[ModuleStage], plan: Plan) -> _Owners:
    found: _Owners = {}
    for number, program in enumerate(programs):
        for name, parameter in program.module.named_parameters():
            _, devices = found.setdefault(id(parameter), (program.parameter_names[name], set()))
            devices |= {*plan.stages[number].devices}
    return found


def _checking(owners: _Owners, devices: Collection[int]) -> Any:
    def check(_: nn.Module, __: Any, results: Any) -> None:
        if torch.is_grad_enabled():
            _check_reached(leaves(results), owners, devices)

    return check


def _check_reached(results: Sequence[Tensor], owners: _Owners, devices: Collection[int]) -> None:
    # A rank has only its own stages. Whatever else it reads there is a copy that nobody trains.
    for leaf in reached_leaves(results):
        name, where = owners.get(id(leaf), ("", {*devices}))
        if not where & {*devices}:
            raise GraphPipeError(
                f"the forward of a stage reads '{name}', a parameter that other devices train",
                remedy="Pass it through the model's forward, or keep both in one stage.",
            )


class _RecordedOutputs:
    """Notes the model's outputs of every micro-batch, where one replica computes them."""

    def __init__(self, program: ModuleStage, stage: Stage, samples: int) -> None:
        self._parts: list[dict[str, Tensor]] = []
        self._program, self._rows, self._samples = program, stage.micro_batch, samples
        self._again = stage.recompute == "full"  # the second forward of a micro-batch comes in its backward
        if stage.degree == 1:
            program.module.register_forward_hook(self._note)

    def _note(self, _: nn.Module, __: Any, results: Any) -> None:
        if torch.is_grad_enabled() != self._again:
            self._parts.append(outputs_of(self._program.output(results[1]), self._rows))

    def forget(self) -> None:
        """Forget what was noted."""
        self._parts.clear()

    def joined(self) -> dict[str, Tensor]:
        """Return the outputs of all samples, where they can be joined."""
        found: dict[str, Tensor] = {}
        for name in self._parts[0] if self._parts else ():
            parts = [each[name] for each in self._parts if name in each]
            if len({each.shape[1:] for each in parts}) == 1 and sum(map(len, parts)) == self._samples:
                found[name] = torch.cat(parts)
        return found
