"""The worker: the stage replicas of one rank, and its connections to the other ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from torch import nn

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.offload_messages import OffloadMessages
from graphpipe.run.comm.rank_placement import RankPlacement, ReplicaSlot
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import LastUse, NamedTensors, ReceiveBuffers
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.run.weights.tied_parameters import TiedParameters
from graphpipe.run.worker.recorder import Recorder
from graphpipe.run.worker.resolved_schedule import ResolvedSchedule, resolve_schedule
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.schedule import LoweredSchedule, StageTask

_KEPT = 4
"""Schedules that are kept ready to run."""


class Replica(Protocol):
    """A replica of a stage, as the worker uses it between steps."""

    @property
    def slot(self) -> ReplicaSlot:
        """Which replica of which stage it is."""
        ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Parameters whose gradients are reduced, in the same order in every replica of a stage."""
        ...


class ReplicaRun(Protocol):
    """A replica in one step, as the worker uses it. It computes, or emulates computing."""

    @property
    def received(self) -> ReceiveBuffers:
        """The values that it has received."""
        ...

    @property
    def outgoing(self) -> dict[int, NamedTensors]:
        """The values that its last task sends, by edge."""
        ...

    @property
    def outgoing_task(self) -> StageTask | None:
        """Its last task."""
        ...

    def do(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        """Run a task for these samples of a mini-batch."""
        ...

    def last_uses(self, task: StageTask, *, training: bool) -> Sequence[LastUse]:
        """Return the received values that nothing reads after a task."""
        ...

    def offload(self, micro_batch: int) -> None:
        """Start to copy what the stage offloads of a micro-batch to the memory of the node, or to a neighbour."""
        ...

    def fetch(self, micro_batch: int) -> None:
        """Start to copy it back."""
        ...


AnyReplica = TypeVar("AnyReplica", bound=Replica)
AnyRun = TypeVar("AnyRun", bound=ReplicaRun)


@dataclass(slots=True, kw_only=True)
class Worker(Generic[AnyReplica, AnyRun]):
    """One rank: the stage replicas it hosts and its connections to the others. `run_step` runs a step with it."""

    placement: RankPlacement
    """Which rank hosts which devices."""
    world: World
    """This rank among all ranks."""
    replicas: dict[tuple[int, int], AnyReplica]
    """The replicas of this rank, by stage and device."""
    new_run: Callable[[AnyReplica, LossFunction | None], AnyRun]
    """Makes the run of a replica for one step."""
    syncs: Mapping[int, ReplicaSync]
    """The synchronisation of replicas, by stage that this rank hosts."""
    messages: RankMessages
    """The messages of this rank to and from others."""
    offloads: OffloadMessages | None = None
    """The messages with what stages offload to other ranks; None if nothing is offloaded, or only in emulation."""
    streams: StageStreams
    """The streams of stages and edges."""
    recorder: Recorder
    """Records when everything happens."""
    monitor: StatusReporter
    """Reports what this rank does."""
    tied_parameters: Sequence[TiedParameters] = ()
    """The parameters that stages share, by position in `Plan.tied_gradients`."""
    resolved: dict[int, ResolvedSchedule] = field(default_factory=dict[int, ResolvedSchedule])
    """The schedules that were run last, by `id(lowered)`: of training, and of evaluations in between."""

    def resolve(self, lowered: LoweredSchedule, batches: StepBatches) -> ResolvedSchedule:
        """Return this rank's part of a schedule, which is kept for the next step."""
        resolved = self.resolved.get(id(lowered))
        if resolved is None or resolved.lowered is not lowered:
            resolved = resolve_schedule(lowered, batches, self.placement, self.world.rank, self.streams)
            self.resolved[id(lowered)] = resolved
            while len(self.resolved) > _KEPT:
                del self.resolved[next(iter(self.resolved))]
        return resolved

    def drain(self) -> None:
        """Wait until every message is sent."""
        self.messages.drain()
        if self.offloads is not None:
            self.offloads.drain()

    def forget(self) -> None:
        """Drop all messages, because a handle keeps its connection open."""
        self.messages.forget()
        if self.offloads is not None:
            self.offloads.forget()

    def of_stage(self, stage: int) -> list[AnyReplica]:
        """Return the replicas of a stage on this rank, in replica order."""
        return sorted(
            (replica for (number, _), replica in self.replicas.items() if number == stage),
            key=lambda replica: replica.slot.replica,
        )

    def leaders(self) -> list[AnyReplica]:
        """Return the first replica of every stage on this rank. The optimizer updates it, and the others copy it."""
        stages = sorted({stage for stage, _ in self.replicas})
        return [self.of_stage(stage)[0] for stage in stages]


StageWorker = Worker[StageReplica, StageReplicaRun]
"""A worker that trains or evaluates a model."""
