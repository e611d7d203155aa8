"""Emulated replicas: each sleeps for the predicted time of a task, and sends tensors of the right size."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange
from graphpipe.plans.tied_gradients import TiedGradients
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.rank_placement import RankPlacement, ReplicaSlot
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import LastUse, NamedTensors, ReceiveBuffers
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas
from graphpipe.run.weights.sync_allreduce import AllReduce
from graphpipe.run.weights.tied_parameters import TiedParameters, tied_ranks
from graphpipe.run.worker.recorder import Recorder
from graphpipe.run.worker.worker import Worker
from graphpipe.schedule import StageTask

SecondsByTask = Mapping[tuple[int, int, str, int], float]
"""Seconds of tasks, by device, stage, kind and micro-batch. An optimizer has the micro-batch -1, or the number of the
mini-batch in a segment."""


@dataclass(slots=True, kw_only=True)
class EmulatedReplica:
    """A replica (see `worker.worker`) without a model."""

    slot: ReplicaSlot
    """Which replica of which stage it is."""
    receives: EdgeSpecs
    """The values that it receives, by edge."""
    sends: EdgeSpecs
    """The values that it sends, by edge."""
    parameters: Sequence[nn.Parameter]
    """One vector with as many bytes as the parameters that replicas reduce."""
    seconds: SecondsByTask = field(default_factory=dict[tuple[int, int, str, int], float])
    """How long to sleep for each task of the step."""
    copies_wait: bool = True
    """Whether the device waits while it copies what it offloads."""


@dataclass(slots=True)
class EmulatedReplicaRun:
    """An emulated replica in one step."""

    replica: EmulatedReplica
    """The replica that runs the tasks."""
    received: ReceiveBuffers
    """The values that have arrived, or will."""
    outgoing: dict[int, NamedTensors] = field(default_factory=dict[int, NamedTensors])
    """Values that the last task has to send, by edge."""
    outgoing_task: StageTask | None = None
    """The last task."""
    copied: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """When copies are done, by kind of their span and micro-batch."""

    def do(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        """Sleep, then keep tensors of the right size for sending."""
        replica = self.replica
        self.received.take(task)
        if task.kind == "B" and ("fetch", task.micro_batch) in self.copied:
            sleep(self.copied["fetch", task.micro_batch] - time.perf_counter())
        kind = "optimizer" if task.kind == "U" else task.kind
        sleep(replica.seconds[replica.slot.device, replica.slot.stage, kind, task.micro_batch])
        edges = {"F": replica.sends, "B": replica.receives, "I": replica.receives}.get(task.kind, {})
        self.outgoing = {edge: {spec.name: _rows(spec, len(rows)) for spec in specs} for edge, specs in edges.items()}
        self.outgoing_task = task

    def last_uses(self, task: StageTask, *, training: bool) -> list[LastUse]:
        """Return nothing: a rehearsal computes on the host, whose operations do not run behind it."""
        del task, training
        return []

    def offload(self, micro_batch: int) -> None:
        """Emulate a copy to the memory of the node, or to a neighbour."""
        self._copy("evict", micro_batch)

    def fetch(self, micro_batch: int) -> None:
        """Emulate a copy back, after all copies out."""
        self._copy("fetch", micro_batch)

    def _copy(self, kind: Literal["evict", "fetch"], micro_batch: int) -> None:
        before = [end for (other, _), end in self.copied.items() if other in (kind, "evict")]
        start = max([time.perf_counter(), *before])
        replica = self.replica
        end = start + replica.seconds[replica.slot.device, replica.slot.stage, kind, micro_batch]
        self.copied[kind, micro_batch] = end
        if replica.copies_wait:
            sleep(end - time.perf_counter())


def emulated_worker(plan: Plan, placement: RankPlacement, world: World) -> Worker[EmulatedReplica, EmulatedReplicaRun]:
    """Return a worker with emulated replicas, which need `seconds` before they run a step."""
    specs = emulated_specs(plan)
    replicas: dict[tuple[int, int], EmulatedReplica] = {}
    for slot in placement.slots(world.rank):
        replicas[slot.stage, slot.device] = EmulatedReplica(
            slot=slot,
            receives={n: specs[n] for n, edge in enumerate(plan.edges) if edge.target == slot.stage},
            sends={n: specs[n] for n, edge in enumerate(plan.edges) if edge.source == slot.stage},
            parameters=_parameters(plan, slot.stage),
            copies_wait=plan.cluster.copies_take_devices,
        )
    return Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        new_run=lambda replica, _: EmulatedReplicaRun(replica, ReceiveBuffers(world.device)),
        syncs=_syncs(plan, placement, world, replicas),
        messages=RankMessages(world),
        streams=StageStreams.of(world.device, plan),
        recorder=Recorder(world=world, on=True),
        tied_parameters=[_tied_parameters(tied, placement, world.rank) for tied in plan.tied_gradients],
        monitor=StatusReporter.of(world.rank, [stage.name for stage in plan.stages], world.device),
    )


def _syncs(
    plan: Plan, placement: RankPlacement, world: World, replicas: Mapping[tuple[int, int], EmulatedReplica]
) -> dict[int, ReplicaSync]:
    modules: dict[int, list[nn.ParameterList]] = {}
    for (stage, _), replica in replicas.items():
        modules.setdefault(stage, []).append(nn.ParameterList(replica.parameters))
    return {
        stage: AllReduce(
            StageReplicas(
                world=world,
                ranks=placement.ranks(stage, placement.position(stage, world.rank)),
                stage=plan.stages[stage].name,
                original=own[0],
                modules=tuple(own),
                parameters=tuple(tuple(module.parameters()) for module in own),
            )
        )
        for stage, own in modules.items()
    }


def emulated_specs(plan: Plan) -> EdgeSpecs:
    """Return the emulated values of every edge: one vector of as many bytes.

    If edges are joint, there is one vector for each value that others read too.
    """
    joint = plan.joint_edges.outputs
    together = {*joint, *(other for others in joint.values() for other in others)}
    return {
        number: _specs_by_value(plan, number) if number in together else _specs(plan, number)
        for number in range(len(plan.edges))
    }


def sleep(seconds: float) -> None:
    """Sleep until `seconds` have passed since the call."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left)


def _specs(plan: Plan, edge: int) -> tuple[ValueSpec, ...]:
    # Only the sizes matter, and whether a gradient is sent back.
    total, name = plan.edges[edge].bytes_per_sample, f"edge {edge}"
    if edge not in plan.gradient_edges:
        return (_spec(name, total, back=False),)
    returned = plan.sent_bytes(edge, backward=True)
    constant = (_spec(f"{name}, without gradient", total - returned, back=False),) if total > returned else ()
    return (_spec(name, returned, back=True), *constant)


def _spec(name: str, count: float, *, back: bool) -> ValueSpec:
    return ValueSpec(name=name, sample_shape=(max(1, round(count)),), dtype=torch.uint8, requires_grad=back)


def _specs_by_value(plan: Plan, edge: int) -> tuple[ValueSpec, ...]:
    values = plan.whole_values[edge]
    rest = plan.edges[edge].bytes_per_sample - sum(values.values())
    named = {**values, ("edge", str(edge)): rest} if rest > 0 else values
    back = edge in plan.gradient_edges
    return tuple(
        _spec(" ".join(value).strip(), count, back=back and value not in plan.graph.one_way)
        for value, count in sorted(named.items())
    )


def _rows(spec: ValueSpec, rows: int) -> Tensor:
    return torch.zeros((rows, *spec.sample_shape), dtype=spec.dtype)


def _parameters(plan: Plan, stage: int) -> list[nn.Parameter]:
    # One vector as large as all parameters that the stage's replicas reduce.
    vector = _vector(plan.reduced_bytes(stage))
    return [vector] if len(vector) else []


def _vector(count: float) -> nn.Parameter:
    # It has a gradient from the start, because no backward makes one.
    vector = nn.Parameter(torch.zeros(round(count / 4)))
    vector.grad = torch.zeros_like(vector)
    return vector


def _tied_parameters(tied: TiedGradients, placement: RankPlacement, rank: int) -> TiedParameters:
    # One vector as large as all these parameters.
    groups = tied_ranks(placement.plan, placement, tied)
    ranks = next((group for group in groups if rank in group), [])
    vector = _vector(tied.bytes)
    return TiedParameters(
        name=placement.plan.stages[tied.stages[0]].name,
        copies=((vector,),),
        updated=frozenset({id(vector)}),
        ranks=tuple(ranks),
        source=groups[0][0],
    )
