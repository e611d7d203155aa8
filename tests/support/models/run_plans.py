"""Plans made by hand for a DagModule, and stage programs made by hand to go with them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from shared_captures import shared_capture
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.cluster.device import Device, DeviceType, Link
from graphpipe.costs import CostTable, State
from graphpipe.graph import Edge, Graph, Input, Op, Origin
from graphpipe.model import DagModule
from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.plans.in_flight import in_flight_samples

StageLine = tuple[Sequence[str], Sequence[int], int]
"""Operators, devices, micro-batch."""


def graph_of(model: DagModule, example: Mapping[str, Tensor]) -> Graph:
    """Return the graph of a DagModule: an operator per submodule."""
    ops = tuple(
        Op(
            name=name,
            parameters=tuple(f"{name}.{inner}" for inner, _ in model.get_submodule(name).named_parameters()),
            output_bytes_per_sample=4.0,
            model_inputs=tuple(feed for feed in feeds if feed in model.input_names),
            trainable=any(p.requires_grad for p in model.get_submodule(name).parameters()),
            whole_batch=name in model.whole_batch,
        )
        for name, feeds in model.feeds.items()
    )
    edges = tuple(
        Edge(source=feed, target=name, bytes_per_sample=4.0)
        for name, feeds in model.feeds.items()
        for feed in dict.fromkeys(feeds)
        if feed not in model.input_names
    )
    inputs = tuple(
        Input(name=name, sample_shape=tuple(example[name].shape[1:]), dtype=str(example[name].dtype)[6:])
        for name in model.input_names
    )
    return Graph(name="hand", ops=ops, edges=edges, inputs=inputs, origin=Origin(method="declared"))


def cluster_of(devices: int) -> Cluster:
    """Return devices with ample memory on one node."""
    kind = DeviceType(
        name="cpu",
        memory_bytes=1e12,
        peak_flops_per_second=1e9,
        memory_bytes_per_second=1e9,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    link = Link(latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    return Cluster(
        name="hand",
        device_types=(kind,),
        devices=tuple(Device(name=f"cpu{number}", type="cpu", node="here") for number in range(devices)),
        intra_node=link,
        inter_node=link,
    )


def plan_of(
    model: DagModule,
    example: Mapping[str, Tensor],
    stages: Sequence[StageLine],
    batch_size: int,
    schedule: str = "1f1b",
) -> Plan:
    """Return a plan with these stages, which must be in topological order."""
    return plan_for(graph_of(model, example), stages, batch_size, schedule)


def captured_plan(
    module: nn.Module, example: Mapping[str, Tensor], stages: Sequence[StageLine], batch_size: int
) -> Plan:
    """Return a plan for the captured graph of a module whose submodules are the operators."""
    captured = shared_capture(module, example, [name for names, _, _ in stages for name in names])
    return plan_for(captured.graph, stages, batch_size)


def plan_for(graph: Graph, stages: Sequence[StageLine], batch_size: int, schedule: str = "1f1b") -> Plan:
    """Return a plan with these stages, which must be in topological order."""
    stage_of = {op: number for number, (ops, _, _) in enumerate(stages) for op in ops}
    pairs = sorted({(stage_of[e.source], stage_of[e.target]) for e in graph.edges})
    return Plan(
        graph=graph,
        cluster=cluster_of(1 + max(device for _, devices, _ in stages for device in devices)),
        costs=CostTable(graph_fingerprint=graph.fingerprint, rows=()),
        batch_size=batch_size,
        stages=tuple(
            Stage(name="+".join(ops), ops=tuple(ops), devices=tuple(on), micro_batch=size, in_flight=batch_size)
            for ops, on, size in stages
        ),
        edges=tuple(StageEdge(source=a, target=b, bytes_per_sample=4.0) for a, b in pairs if a != b),
        schedule=schedule,
    )


def with_states(plan: Plan, states: Sequence[State]) -> Plan:
    """Return the plan with these states of its stages, in turn; the same plan without any."""
    if not states:
        return plan
    stages = (replace(stage, state=state) for stage, state in zip(plan.stages, cycle(states), strict=False))
    return replace(plan, stages=tuple(stages))


def in_a_chain(plan: Plan, schedule: str = "1f1b") -> Plan:
    """Return the plan as a sequential pipeline: stages that do not feed each other have edges without values."""
    known = {(edge.source, edge.target): edge for edge in plan.edges}
    following = [(stage, stage + 1) for stage in range(len(plan.stages) - 1)]
    edges = known | {(a, b): StageEdge(source=a, target=b, bytes_per_sample=0.0) for a, b in {*following} - {*known}}
    return replace(plan, edges=tuple(edges[ends] for ends in sorted(edges)), schedule=schedule)


def in_bursts(plan: Plan, bursts: Sequence[int]) -> Plan:
    """Return the plan under kFkB with these bursts, by stage, and no more samples in flight than they need."""
    sizes = [stage.micro_batch for stage in plan.stages]
    needed = in_flight_samples(plan.batch_size, sizes, bursts, plan.successors)
    stages = (replace(s, burst=k, in_flight=n) for s, k, n in zip(plan.stages, bursts, needed, strict=True))
    return replace(plan, stages=tuple(stages), schedule="kfkb")


@dataclass
class HandStage:
    """A stage program: submodules of a DagModule, called in order."""

    feeds: Mapping[str, tuple[str, ...]]
    module: nn.ModuleDict
    model_inputs: tuple[str, ...]
    receives: Mapping[int, tuple[ValueSpec, ...]]
    sends: Mapping[int, tuple[ValueSpec, ...]]
    is_output: bool
    result: str
    output_dtypes = ()

    @property
    def parameter_names(self) -> Mapping[str, str]:
        """The user's names are the same here."""
        return {name: name for name, _ in self.module.named_parameters()}

    @property
    def buffer_names(self) -> Mapping[str, str]:
        """The user's names are the same here."""
        return {name: name for name, _ in self.module.named_buffers()}

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the submodules in order."""
        at_hand = dict(values)
        for name, names in self.feeds.items():
            at_hand[name] = self.module[name](*(at_hand[other] for other in names))
        sent = {spec.name: at_hand[spec.name] for specs in self.sends.values() for spec in specs}
        return sent, at_hand[self.result] if self.is_output else None

    def arrange(self, output: object) -> object:
        """The model's containers are plain ones."""
        return output

    def replicate(self) -> "HandStage":
        """Return a copy with its own parameters."""
        return HandStage(**{**self.__dict__, "module": copy.deepcopy(self.module)})


def hand_split(model: DagModule, plan: Plan, example: Mapping[str, Tensor]) -> tuple[HandStage, ...]:
    """Return the stage programs of a plan; every submodule must return one tensor."""
    specs = _specs(model, example)
    stages = [set(stage.ops) for stage in plan.stages]

    def crossing(edge: StageEdge) -> tuple[ValueSpec, ...]:
        read = {feed for name in stages[edge.target] for feed in model.feeds[name]}
        return tuple(specs[name] for name in sorted(read & stages[edge.source]))

    return tuple(
        HandStage(
            feeds={name: feeds for name, feeds in model.feeds.items() if name in ops},
            module=nn.ModuleDict({name: model.get_submodule(name) for name in sorted(ops)}),
            model_inputs=tuple(n for n in model.input_names if any(n in model.feeds[op] for op in ops)),
            receives={i: crossing(edge) for i, edge in enumerate(plan.edges) if edge.target == number},
            sends={i: crossing(edge) for i, edge in enumerate(plan.edges) if edge.source == number},
            is_output=model.output in ops,
            result=str(model.output),
        )
        for number, ops in enumerate(stages)
    )


def _specs(model: DagModule, example: Mapping[str, Tensor]) -> dict[str, ValueSpec]:
    twin = copy.deepcopy(model).eval()
    values: dict[str, Tensor] = dict(example)
    trained: dict[str, bool] = {}
    with torch.no_grad():
        for name, feeds in model.feeds.items():
            values[name] = twin.get_submodule(name)(*(values[feed] for feed in feeds))
            own = any(p.requires_grad for p in model.get_submodule(name).parameters())
            trained[name] = own or any(trained.get(feed, False) for feed in feeds)
    return {
        name: ValueSpec(
            name=name,
            sample_shape=tuple(values[name].shape[1:]),
            dtype=values[name].dtype,
            requires_grad=trained[name] and values[name].is_floating_point(),
        )
        for name in model.feeds
    }
