"""One replica of a stage: its program on a device, and what it has learned in earlier steps."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.stage.offload import Offloading
from graphpipe.run.stage.recompute import Recomputation
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.schedule import StageTask

Form = tuple[StageProgram, Recomputation | None]
"""The program of a replica for inputs of one shape, and its recomputation."""


@dataclass(slots=True, kw_only=True)
class StageReplica:
    """A stage program on a device. A `StageReplicaRun` has its state during one step."""

    slot: ReplicaSlot
    """Which replica of which stage it is."""
    stage_name: str
    """The name of its stage."""
    program: StageProgram
    """Computes the stage, for inputs of the last step's shapes."""
    device: torch.device
    """Where it computes."""
    monitor: StatusReporter
    """Reports what the rank does, and damages values where a test asks for it."""
    parameters: Sequence[nn.Parameter]
    """The program's parameters between steps, which are shards under FSDP. Looked up once."""
    sync: ReplicaSync
    """Synchronises the replicas of its stage."""
    last: StageTask | None
    """The last backward, or weight half, of a step."""
    precision: str = "fp32"
    """The precision of forwards."""
    recomputation: Recomputation | None = None
    """If given, forwards do not record a graph, and backwards compute them again."""
    offloading: Offloading | None = None
    """If given, some operators' saved tensors are elsewhere between forward and backward."""
    splits: bool = False
    """Whether backwards are split into two halves."""
    in_flight_limit: float | None = None
    """The most samples that may be in flight, which is asserted. None turns the check off."""
    kept_share: float = 1.0
    """Share of a sample's activations that is kept between the two halves of its backward."""
    forms: dict[Hashable, Form] = field(default_factory=dict[Hashable, Form])
    """Earlier values of `program` and `recomputation`, by the shapes of the inputs."""
    releases: dict[int, bool] = field(default_factory=dict[int, bool])
    """Whether the input half may release tensors (see `ReleasableTensors`), by the number of tensors that the forward
    saved. Each number is tried once."""
    weights: StageWeights | None = None
    """Which weights each task reads; None under a policy that flushes, where all tasks read the parameters."""
    update: Callable[[int], None] | None = None
    """Updates the weights after a mini-batch of a segment; None under a policy that flushes."""
    reached: set[str] = field(default_factory=set[str])
    """Names of values on an accelerator that have got a gradient."""
    compares: bool = False
    """Whether the next micro-batch is computed eagerly too, because the stage is compiled for the first time."""
    whole: str | None = None
    """Why the last backward of a split stage ran whole. Empty if it was split, None before the first backward."""

    @property
    def module(self) -> nn.Module:
        """The stage's module, with its parameters and buffers."""
        return self.program.module

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trainable parameters, with their names in the user's model."""
        names = [self.program.parameter_names[local] for local, _ in self.module.named_parameters()]
        return [(name, each) for name, each in zip(names, self.parameters, strict=True) if each.requires_grad]

    def may_release(self, saved: int) -> bool:
        """Return whether the input half of a forward that saved so many tensors may release some of them."""
        return self.releases.get(saved, False)
