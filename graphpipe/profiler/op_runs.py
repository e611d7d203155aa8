"""The real code of every operator of a module, with the real inputs it gets."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.graph import Graph
from graphpipe.model.split.split import split
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.torch_private import flatten, unflatten
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.profiler.profile_ops import OpRun


@dataclass(frozen=True, slots=True)
class Criterion:
    """The loss of the training, and targets to take it of."""

    loss_fn: Callable[[Any, Any], Tensor]
    targets: Any
    """A tree of tensors, of as many samples as the inputs."""

    def rows(self) -> dict[str, Tensor]:
        """Return the targets under names that no value has."""
        return {f"target {number}": each for number, each in enumerate(flatten(self.targets)[0])}

    def loss(self, output: object, values: dict[str, Tensor]) -> Tensor:
        """Return the loss, given the targets among these values."""
        spec = flatten(self.targets)[1]
        return self.loss_fn(output, unflatten([values[name] for name in self.rows()], spec))


def op_runs(
    model: nn.Module,
    graph: Graph,
    cluster: Cluster,
    values: dict[str, Tensor],
    criterion: Criterion | None = None,
) -> Iterator[OpRun]:
    """Yield the run of every operator, in topological order.

    The model is split with one operator per stage, and the stages are run in order; a value lives until the last
    operator that reads it.

    Args:
        model: a module with real weights; it is not changed.
        graph: captured from it.
        cluster: any; the stages are put on its first device.
        values: the model's inputs, by name.
        criterion: given, the loss is part of the operator that puts out the model's result.
    """
    programs = split(model, _one_op_per_stage(graph, cluster))
    reads = [_reads(program) for program in programs]
    for position, (name, original) in enumerate(zip(graph.order, programs, strict=True)):
        program = original.replicate()  # the user's parameters, gradients and buffers stay untouched
        yield _run(graph, name, program, {value: values[value] for value in reads[position]}, criterion)
        with torch.no_grad():
            sent, _ = program({value: values[value].clone() for value in reads[position]})
        later = set().union(*reads[position + 1 :])
        values = {value: tensor for value, tensor in (values | sent).items() if value in later}


def _one_op_per_stage(graph: Graph, cluster: Cluster) -> Plan:
    at = {name: position for position, name in enumerate(graph.order)}
    return Plan(
        graph=graph,
        cluster=cluster,
        costs=CostTable(graph_fingerprint=graph.fingerprint, rows=()),
        batch_size=1,
        stages=tuple(Stage(name=name, ops=(name,), devices=(0,), micro_batch=1, in_flight=1) for name in graph.order),
        edges=tuple(
            StageEdge(source=at[edge.source], target=at[edge.target], bytes_per_sample=edge.bytes_per_sample)
            for edge in graph.edges
        ),
    )


def _reads(program: StageProgram) -> set[str]:
    return {*program.model_inputs, *(spec.name for specs in program.receives.values() for spec in specs)}


def _run(
    graph: Graph, name: str, program: StageProgram, inputs: dict[str, Tensor], criterion: Criterion | None
) -> OpRun:
    last = criterion if program.is_output else None
    inputs = inputs | (last.rows() if last else {})
    received = [spec for specs in program.receives.values() for spec in specs]
    parameters = tuple(parameter for parameter in program.module.parameters() if parameter.requires_grad)
    return OpRun(
        op=name,
        call=partial(_call, program, last),
        inputs=inputs,
        differentiable=frozenset(spec.name for spec in received if spec.requires_grad),
        parameters=parameters,
        twin=_twin(graph, name, program, inputs),
        kept_bytes_per_sample=graph[name].work.saved_bytes_per_sample,
        ends=last is not None,
    )


def _call(program: StageProgram, criterion: Criterion | None, values: dict[str, Tensor]) -> list[Tensor]:
    sent, output = program(values)
    return [*sent.values(), *(_tensors(output) if criterion is None else [criterion.loss(output, values)])]


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [tensor for part in output for tensor in _tensors(part)] if isinstance(output, (tuple, list)) else []


def _twin(graph: Graph, name: str, program: StageProgram, inputs: Mapping[str, Tensor]) -> Hashable:
    # Names apart, everything that decides what the operator computes: its work (which counts FLOPs, traffic and
    # kernels of its aten calls), its modules and their settings, and the shapes that go in.
    op = graph[name]
    gradients = {spec.name: spec.requires_grad for specs in program.receives.values() for spec in specs}
    return (
        op.kind,
        op.work,
        op.output_bytes_per_sample,
        tuple((type(module).__qualname__, module.extra_repr(), module.training) for module in program.module.modules()),
        tuple((tuple(each.shape), each.dtype, each.requires_grad) for each in program.module.parameters()),
        tuple((tuple(tensor.shape), tensor.dtype, gradients.get(value)) for value, tensor in sorted(inputs.items())),
    )
