"""What a worker needs of a replica of a stage, which computes or emulates computing, and of its run of one step."""

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import nn

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors, ReceiveBuffers
from graphpipe.schedule import StageTask


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

    def move(self, kind: Literal["evict", "fetch"], micro_batch: int) -> None:
        """Start to copy what the stage offloads of a micro-batch to the memory of the node, or back."""
        ...
