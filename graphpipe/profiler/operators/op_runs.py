"""The real code of every operator of a module, with the real inputs it reads."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.graph import Graph, Precision
from graphpipe.model.autocast import autocast_context
from graphpipe.model.capture.capture import Captured
from graphpipe.model.split.split import build_stages
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.torch_private import flatten, unflatten
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.profiler.operators.lone_rank import first_of_ranks
from graphpipe.profiler.operators.stand_in_weights import fill_meta_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """The real code of one operator, with real inputs."""

    op: str
    call: Callable[[dict[str, Tensor]], Sequence[Tensor]]
    """Runs the operator. It takes the inputs by name, for any number of samples, and returns every output tensor."""
    inputs: Mapping[str, Tensor]
    """The operator's inputs by name, with at least as many samples as the largest batch that is measured."""
    differentiable: frozenset[str] = frozenset()
    """Inputs that need a gradient in training."""
    parameters: tuple[Tensor, ...] = ()
    """Parameters that need a gradient; it accumulates in them."""
    module: nn.Module | None = None
    """The module that `call` calls."""
    sends: tuple[str, ...] = ()
    """The names of the values that `call` returns first, which are those that other operators read."""
    signature: Hashable
    """Key of the code and the shapes of the run: one measurement serves all operators with equal keys."""
    saved_bytes_per_sample: float = 0.0
    """Bytes per sample that the operator saves for its backward."""
    ends: bool = False
    """Whether the operator's output is the loss."""
    without_loss: Callable[[dict[str, Tensor]], Sequence[Tensor]] | None = None
    """Like `call`, without the loss. None: there is none."""

    def enter(self, samples: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the inputs that need a gradient, and all inputs by name, both of `samples` samples.

        An operator may work in place, so it gets copies: neither `inputs` nor a leaf may be written into.
        """
        rows = {name: tensor[:samples].detach() for name, tensor in self.inputs.items()}
        leaves = [rows[name].requires_grad_() for name in sorted(self.differentiable)]
        return leaves, {name: tensor.clone() for name, tensor in rows.items()}


@dataclass(frozen=True, slots=True)
class Criterion:
    """The loss function of the training, and its targets."""

    loss_fn: Callable[[Any, Any], Tensor]
    targets: Any
    """A tree of tensors with as many samples as the inputs."""

    def rows(self) -> dict[str, Tensor]:
        """Return the targets, named so that they cannot collide with the values of the model."""
        return {f"target {number}": leaf for number, leaf in enumerate(flatten(self.targets)[0])}

    def loss(self, output: object, values: dict[str, Tensor]) -> Tensor:
        """Return the loss of an output; `values` contains the targets."""
        spec = flatten(self.targets)[1]
        return self.loss_fn(output, unflatten([values[name] for name in self.rows()], spec))


def op_runs(
    model: nn.Module,
    captured: Captured,
    cluster: Cluster,
    values: dict[str, Tensor],
    criterion: Criterion | None = None,
    device: torch.device | None = None,
    ranks: int = 1,
) -> Iterator[OpRun]:
    """Yield the run of every operator, in topological order; of each that devices share, if there are several.

    The model is split with one operator per stage, and the stages run in order. A value is freed after the last
    operator that reads it.

    Args:
        model: the user's; it is not changed.
        captured: the capture of it.
        cluster: any; all stages are placed on its first device.
        values: the model's inputs, by name.
        criterion: if given, the loss is part of the operator that computes the model's output. Its targets must be
            where the operators run.
        device: where the operators run. None: where the model is.
        ranks: how many devices share a replica. With several, the runs are those of the first of them.
    """
    graph = captured.graph
    values = {name: value.to(device) for name, value in values.items()} if device is not None else values
    plan = _one_op_per_stage(graph, cluster)
    programs = build_stages(model, plan, captured)
    shared = programs if ranks == 1 else build_stages(model, plan, captured, first_of_ranks(model, graph, ranks))
    reads = [_reads(program) for program in programs]
    for position, (name, original, part) in enumerate(zip(graph.order, programs, shared, strict=True)):
        program = _own_copy(original, device)
        inputs = {value: values[value] for value in reads[position]}
        if ranks == 1:
            yield _run(graph, name, program, inputs, criterion, captured.precision)
        elif (shards := graph[name].shards) is not None and shards.shared_by(ranks):
            yield _run(graph, name, _own_copy(part, device), inputs, criterion, captured.precision)
        with torch.no_grad(), autocast_context(captured.precision, _device(inputs)):
            sent, _ = program({value: values[value].clone() for value in reads[position]})
        later = set().union(*reads[position + 1 :])
        values = {value: tensor for value, tensor in (values | sent).items() if value in later}


def _own_copy(original: StageProgram, device: torch.device | None) -> StageProgram:
    program = original.replicate()  # the user's parameters, gradients and buffers stay untouched
    fill_meta_tensors(program.module)
    if device is not None:
        program.module.to(device)
    return program


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


def _sent(program: StageProgram) -> tuple[str, ...]:
    return tuple(sorted({spec.name for specs in program.sends.values() for spec in specs}))


def _run(
    graph: Graph,
    name: str,
    program: StageProgram,
    inputs: dict[str, Tensor],
    criterion: Criterion | None,
    precision: Precision,
) -> OpRun:
    last = criterion if program.is_output else None
    inputs = inputs | (last.rows() if last else {})
    received = [spec for specs in program.receives.values() for spec in specs]
    parameters = tuple(parameter for parameter in program.module.parameters() if parameter.requires_grad)
    return OpRun(
        op=name,
        call=partial(call_program, program, last, precision),
        inputs=inputs,
        differentiable=frozenset(spec.name for spec in received if spec.requires_grad),
        parameters=parameters,
        module=program.module,
        sends=_sent(program),
        signature=_signature(graph, name, program, inputs),
        saved_bytes_per_sample=graph[name].work.saved_bytes_per_sample,
        ends=last is not None,
        without_loss=partial(call_program, program, None, precision) if last else None,
    )


def call_program(
    program: StageProgram, criterion: Criterion | None, precision: Precision, values: dict[str, Tensor]
) -> list[Tensor]:
    """Run the program of an operator, and the loss if there is a criterion. Return all tensors that come out."""
    with autocast_context(precision, _device(values)):
        sent, output = program(values)
        return [
            *(sent[name] for name in sorted(sent)),
            *(_tensors(output) if criterion is None else [criterion.loss(output, values)]),
        ]


def _device(values: Mapping[str, Tensor]) -> torch.device | str:
    return next((value.device for value in values.values()), "cpu")


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [tensor for part in output for tensor in _tensors(part)] if isinstance(output, (tuple, list)) else []


def _signature(graph: Graph, name: str, program: StageProgram, inputs: Mapping[str, Tensor]) -> Hashable:
    # Everything except names that decides what the operator computes: its work (FLOPs, traffic and kernels of its aten
    # calls), its modules and their settings, and the shapes of its inputs.
    op = graph[name]
    gradients = {spec.name: spec.requires_grad for specs in program.receives.values() for spec in specs}
    return (
        op.kind,
        op.work,
        op.output_bytes_per_sample,
        tuple((type(module).__qualname__, module.extra_repr(), module.training) for module in program.module.modules()),
        tuple((tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in program.module.parameters()),
        tuple((tuple(tensor.shape), tensor.dtype, gradients.get(value)) for value, tensor in sorted(inputs.items())),
    )
