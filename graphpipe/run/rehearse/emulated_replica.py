"""Emulated compute: a replica that sleeps as long as its tasks would take, and sends tensors of their size."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from graphpipe.model.stage_program import ValueSpec
from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange
from graphpipe.plans.tied_gradients import Exchange
from graphpipe.run.comm.messages import Channels
from graphpipe.run.comm.rank_placement import Placement, Seat
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import Lanes
from graphpipe.run.faults.status_reporter import Watch
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import Batch
from graphpipe.run.stage.receive_buffers import Inbox, Values
from graphpipe.run.step.recorder import Recorder
from graphpipe.run.step.worker import Worker
from graphpipe.run.weights.replica_sync import Engine
from graphpipe.run.weights.sync_allreduce import AllReduce
from graphpipe.run.weights.tied_parameters import SharedParameters
from graphpipe.schedule import Task

Seconds = Mapping[tuple[int, int, str], float]
"""How long tasks take, by device, stage and kind."""


@dataclass(slots=True, kw_only=True)
class EmulatedReplica:
    """A replica (see `worker.Replica`) without a model."""

    seat: Seat
    inbox: Inbox
    seconds: Mapping[str, float]
    """By kind of task."""
    receives: EdgeSpecs
    sends: EdgeSpecs
    parameters: Sequence[nn.Parameter]
    outgoing: dict[int, Values] = field(default_factory=dict[int, Values])
    outgoing_task: Task | None = None

    def begin(self) -> None:
        """Forget the last step."""
        self.inbox.parcels.clear()
        self.outgoing, self.outgoing_task = {}, None

    def do(self, task: Task, rows: SampleRange, batch: Batch, loss_fn: LossFunction | None) -> None:
        """Sleep, then hold tensors of the right size for sending."""
        self.inbox.take(task)
        sleep(self.seconds[task.kind])
        edges = {"F": self.sends, "B": self.receives, "I": self.receives, "W": {}}[task.kind]
        self.outgoing = {edge: {spec.name: _rows(spec, len(rows)) for spec in specs} for edge, specs in edges.items()}
        self.outgoing_task = task


def emulated_worker(plan: Plan, seconds: Seconds, placement: Placement, world: World) -> Worker[EmulatedReplica]:
    """Return a worker whose replicas only pretend to compute."""
    specs = emulated_specs(plan)
    replicas: dict[tuple[int, int], EmulatedReplica] = {}
    for seat in placement.seats(world.rank):
        replicas[seat.stage, seat.device] = EmulatedReplica(
            seat=seat,
            inbox=Inbox(world.device),
            seconds={kind: seconds.get((seat.device, seat.stage, kind), 0.0) for kind in "FBIW"},
            receives={n: specs[n] for n, edge in enumerate(plan.edges) if edge.target == seat.stage},
            sends={n: specs[n] for n, edge in enumerate(plan.edges) if edge.source == seat.stage},
            parameters=_parameters(plan, seat.stage),
        )
    return Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        engines=_engines(plan, placement, world, replicas),
        channels=Channels(world),
        lanes=Lanes.of(world.device, plan),
        recorder=Recorder(world=world, on=True),
        shared=[_shared(exchange, placement, world.rank) for exchange in plan.exchanges],
        watch=Watch.of(world.rank, [stage.name for stage in plan.stages], world.device),
    )


def _engines(
    plan: Plan, placement: Placement, world: World, replicas: Mapping[tuple[int, int], EmulatedReplica]
) -> dict[int, Engine]:
    stages: dict[int, list[Sequence[nn.Parameter]]] = {}
    for (stage, _), replica in replicas.items():
        stages.setdefault(stage, []).append(replica.parameters)
    return {
        stage: AllReduce(
            world=world,
            ranks=placement.ranks(stage),
            copies=[*zip(*parameters, strict=True)],
            stage=plan.stages[stage].name,
        )
        for stage, parameters in stages.items()
    }


def emulated_specs(plan: Plan) -> EdgeSpecs:
    """Return what goes along every edge in place of the values: as many bytes."""
    return {number: (_spec(plan, number),) for number in range(len(plan.edges))}


def sleep(seconds: float) -> None:
    """Sleep until `seconds` have passed since the call."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left)


def _spec(plan: Plan, edge: int) -> ValueSpec:
    # Bytes without meaning; whether a gradient comes back is all that counts.
    size, back = max(1, round(plan.edges[edge].bytes_per_sample)), edge in plan.gradient_edges
    return ValueSpec(name=f"edge {edge}", sample_shape=(size,), dtype=torch.uint8, requires_grad=back)


def _rows(spec: ValueSpec, rows: int) -> Tensor:
    return torch.zeros((rows, *spec.sample_shape), dtype=spec.dtype)


def _parameters(plan: Plan, stage: int) -> list[nn.Parameter]:
    # One vector as large as all parameters that its replicas reduce.
    vector = _vector(plan.reduced_bytes(stage))
    return [vector] if len(vector) else []


def _vector(count: float) -> nn.Parameter:
    # Its gradient is there from the start.
    vector = nn.Parameter(torch.zeros(round(count / 4)))
    vector.grad = torch.zeros_like(vector)
    return vector


def _shared(exchange: Exchange, placement: Placement, rank: int) -> SharedParameters:
    # One vector as large as all parameters that are exchanged.
    ranks = sorted({rank for stage in exchange.stages for rank in placement.ranks(stage)})
    vector = _vector(exchange.bytes)
    return SharedParameters(
        name=placement.plan.stages[exchange.stages[0]].name,
        copies=((vector,),),
        updated=frozenset({id(vector)}),
        ranks=tuple(ranks) if rank in ranks else (),
        source=ranks[0],
    )
