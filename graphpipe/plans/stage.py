"""Stages and the edges between them."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Recompute, State
from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph

WeightPolicy = Literal["flush", "stash", "vertical-sync", "double-buffer", "moving-average", "predict"]
"""Which weights a micro-batch sees if mini-batches follow each other without a flush (`schedule.segments`)."""
OTHER_BACKWARDS: tuple[WeightPolicy, ...] = ("moving-average", "predict")
"""Under these, a backward may read other weights than its forward, so stages cannot recompute."""
Predictor = Literal["", "pipeoptim", "spectrain", "xpipe"]
"""How the policy `predict` predicts weights; empty for other policies."""


def check_policy_names(weights: str, predictor: str) -> None:
    """Check that a weight policy and a predictor exist.

    Raises:
        InvalidInput: one does not. The nearest name is the remedy.
    """
    for field, word, value, known in (
        ("weights", "weight policy", weights, get_args(WeightPolicy)),
        ("predictor", "predictor", predictor, get_args(Predictor)),
    ):
        if value not in known:
            remedy = nearest(value, [name for name in known if name])
            raise InvalidInput(f"unknown {word} '{value}'", where=field, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRegion:
    """Operators of a stage that a backend runs as one piece."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    backend: str
    """The name of a backend in `graphpipe.model.backends.registry`."""
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A convex set of operators on a set of devices."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    ops: tuple[str, ...]
    devices: tuple[int, ...]
    """Positions in the cluster's devices, replica by replica. With more than `tensor`, the stage is data-parallel."""
    micro_batch: int
    """Samples of one micro-batch over all replicas. Each replica computes micro_batch / degree of them. If it does not
    divide the mini-batch, the last micro-batch has what is left."""
    in_flight: int
    """Largest number of samples, over all replicas, whose forward has started and whose backward has not ended. Without
    training: of samples that have left one stage and not begun at the next, on every edge of the stage. A multiple of
    `micro_batch`: a short last micro-batch counts as a whole one."""
    burst: int = 1
    """Micro-batches that are forwarded, then backwarded, in a row: the k of kFkB."""
    recompute: Recompute = "none"
    """What the backward recomputes. `full`: a sample in flight keeps only what the stage received. Names of operators
    or submodules: it keeps their inputs, not what they saved."""
    offload: tuple[str, ...] = ()
    """Names of operators or submodules. What they make and only they save is offloaded to the memory of the node after
    the forward, and fetched one task before the backward."""
    offload_to: tuple[int, ...] = ()
    """For each of `devices`, the neighbour (a position in the cluster's devices) to whose memory it offloads. Empty: to
    the memory of the node."""
    backward: Literal["auto", "whole"] = "auto"
    """Whether the backward may be split into two halves. `whole`: never. `auto`: if the schedule splits backwards."""
    state: State = "whole"
    """What the replicas shard. `whole`: nothing. `optimizer`: the optimizer's state (ZeRO-1). `all`: between steps also
    weights and gradients (FSDP2). `layers`: in addition, these are gathered layer by layer during a step."""
    versions: int = 1
    """Most versions of the stage's weights that each device holds at once, the newest and predicted ones included."""
    regions: tuple[BackendRegion, ...] = ()
    """Which backend runs which operators; empty: PyTorch runs all of them. Costs are those of the cost table."""
    tensor: int = 1
    """The tensor-parallel degree: how many devices share each replica. They follow each other in `devices`."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Files of stages whose replicas are single devices are what they were before several could share one.
        body = body_of(self)
        return body if self.tensor > 1 else {name: value for name, value in body.items() if name != "tensor"}

    @property
    def degree(self) -> int:
        """The data-parallel degree: the number of replicas."""
        return len(self.devices) // self.tensor

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each replica, by rank: one, or as many as share it."""
        step = self.tensor
        return tuple(self.devices[start : start + step] for start in range(0, len(self.devices), step))

    @property
    def peers(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each rank, replica by replica: they hold the same parts of the weights."""
        return tuple(self.devices[rank :: self.tensor] for rank in range(self.tensor))

    def replica_of(self, device: int) -> int:
        """Return the replica that a device of the stage computes, alone or with others."""
        return self.devices.index(device) // self.tensor

    @property
    def may_split(self) -> bool:
        """Whether its backwards may be split. While a weight half waits, everything that the input half has recomputed
        or fetched would stay in memory."""
        return self.recompute == "none" and not self.offload and self.backward == "auto"

    @property
    def keeping(self) -> "Stage":
        """The stage without any decision about memory: it keeps all that its operators save."""
        return replace(self, recompute="none", offload=(), offload_to=())

    def neighbour(self, device: int) -> int | None:
        """Return the device to which that device offloads; None: to the memory of its node."""
        return self.offload_to[self.devices.index(device)] if self.offload_to else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """`source` sends `bytes_per_sample` to `target`. Both are positions in `Plan.stages`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: int
    target: int
    bytes_per_sample: float


class PlanFields(Protocol):
    """The fields of a plan that the verifiers read. The verifiers derive everything else themselves."""

    @property
    def graph(self) -> Graph:
        """The operator graph."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Devices and links."""
        ...

    @property
    def costs(self) -> CostTable:
        """Costs of the operators."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples of a mini-batch."""
        ...

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in topological order."""
        ...

    @property
    def edges(self) -> tuple[StageEdge, ...]:
        """The edges between stages."""
        ...

    @property
    def weights(self) -> WeightPolicy:
        """Which weights a micro-batch sees."""
        ...

    @property
    def predictor(self) -> Predictor:
        """How weights are predicted."""
        ...

    @property
    def trains(self) -> bool:
        """Whether the plan trains, or else is for inference."""
        ...

    @property
    def planner(self) -> str:
        """Who chose the stages."""
        ...
