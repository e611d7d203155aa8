"""The plan: a directed acyclic graph of stages on devices, complete enough to simulate and to run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ConfigDict

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable, Recompute
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.files.json_document import digest, fingerprint, from_body, read_document, write_document
from graphpipe.graph import Graph
from graphpipe.plans.tied_gradients import Exchange, exchanges_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A convex set of operators on a set of devices."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    ops: tuple[str, ...]
    devices: tuple[int, ...]
    """Positions in the cluster's devices; more than one is data parallelism."""
    micro_batch: int
    """Samples of one micro-batch over all replicas; each replica takes micro_batch / degree of them."""
    in_flight: int
    """Samples whose forward may have run before their backward ends, over all replicas."""
    burst: int = 1
    """k of kFkB: micro-batches forwarded, then backwarded, in a row."""
    recompute: Recompute = "none"
    """`full`: a sample in flight keeps only what the stage received. Names of operators or submodules: it keeps what
    these read, not what they saved. What is not kept is computed again for the backward."""
    backward: Literal["auto", "whole"] = "auto"
    """`whole`: never in two halves, whatever the schedule. `auto`: in halves where the schedule splits it."""
    backend: Literal["eager"] = "eager"

    @property
    def degree(self) -> int:
        """The data-parallel degree."""
        return len(self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """`source` sends `bytes_per_sample` to `target`; both are positions in `Plan.stages`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: int
    target: int
    bytes_per_sample: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the simulator says of a plan."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step_seconds: float
    bubble_fraction: float
    """Share of device time, over the devices in use, spent neither computing nor updating weights."""
    peak_bytes: tuple[float, ...]
    """One per device of the cluster; 0 for a device left unused."""


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one mini-batch of a graph is computed by a cluster.

    Holds the graph, cluster and costs it was made from, so that a plan file alone can be verified, simulated,
    reported and run. `graphpipe.plans.verify.verify` says whether the stages are sound; construction does not.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph: Graph
    cluster: Cluster
    costs: CostTable
    batch_size: int
    stages: tuple[Stage, ...]
    """In topological order."""
    edges: tuple[StageEdge, ...]
    schedule: str = "1f1b"
    planner: str = "hand"
    search_seconds: float = 0.0
    prediction: Prediction | None = None

    @cached_property
    def cost_model(self) -> CostModel:
        """The look-up of every cost of this plan."""
        return CostModel.of(self.graph, self.costs, self.cluster)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages each stage receives from, ascending."""
        return tuple(
            tuple(sorted(edge.source for edge in self.edges if edge.target == stage))
            for stage in range(len(self.stages))
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages each stage sends to, ascending."""
        return tuple(
            tuple(sorted(edge.target for edge in self.edges if edge.source == stage))
            for stage in range(len(self.stages))
        )

    @cached_property
    def gradient_edges(self) -> frozenset[int]:
        """Positions in `edges` along which gradients come back: all but those that leave frozen branches.

        An edge of no values, which only puts the stages of a sequential pipeline in order, orders their backwards too.
        """
        frozen = one_way_pairs(self.graph, [stage.ops for stage in self.stages])
        return frozenset(n for n, edge in enumerate(self.edges) if (edge.source, edge.target) not in frozen)

    @cached_property
    def gradient_sources(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages that send gradients to each stage, ascending: its successors, if it trains."""
        back = [self.edges[position] for position in self.gradient_edges]
        return tuple(
            tuple(sorted(edge.target for edge in back if edge.source == stage)) for stage in range(len(self.stages))
        )

    @cached_property
    def gradient_targets(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages that each stage sends gradients to, ascending: its predecessors, if they train."""
        back = [self.edges[position] for position in self.gradient_edges]
        return tuple(
            tuple(sorted(edge.source for edge in back if edge.target == stage)) for stage in range(len(self.stages))
        )

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The gradients that stages exchange because they share parameters."""
        return exchanges_of(self.graph, [(stage.ops, stage.devices) for stage in self.stages])

    def apart(self, stage: int) -> frozenset[str]:
        """Return the names of a stage's parameters whose gradients are exchanged, not reduced by itself."""
        return frozenset(name for each in self.exchanges if stage in each.stages for name in each.parameters)

    def reduced_bytes(self, stage: int) -> float:
        """Return the bytes of gradients that the replicas of a stage sum among themselves."""
        return self.cost_model.gradient_bytes(self.stages[stage].ops, self.apart(stage))

    def reduce_seconds(self, stage: int) -> float:
        """Return the seconds of the all-reduce over the replicas of a stage."""
        return self.cost_model.all_reduce_seconds(self.reduced_bytes(stage), self.stages[stage].devices)

    def exchange_seconds(self, exchange: Exchange) -> float:
        """Return the seconds of the all-reduce over all devices that share these parameters."""
        return self.cost_model.all_reduce_seconds(exchange.bytes, exchange.devices)

    @cached_property
    def depth(self) -> int:
        """Number of stages on the longest path of the stage graph."""
        longest = [1] * len(self.stages)
        for stage, before in enumerate(self.predecessors):
            longest[stage] = 1 + max((longest[other] for other in before), default=0)
        return max(longest)

    @cached_property
    def used_devices(self) -> tuple[int, ...]:
        """Devices that host a stage, ascending."""
        return tuple(sorted({device for stage in self.stages for device in stage.devices}))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides the run: stages, batch, schedule, graph and cluster (not predictions or timings)."""
        return fingerprint(replace(self, prediction=None, search_seconds=0.0))

    def micro_batches(self, stage: int) -> int:
        """Return the number of micro-batches of a stage in one mini-batch."""
        return self.batch_size // self.stages[stage].micro_batch

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON document, with the hashes of graph and cluster inside."""
        write_document(path, "plan", PlanFile.of(self))

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan written by `save`, and verify it.

        Raises:
            InvalidInput: not a plan file of this schema version, a hash does not match, or an unsound plan.
        """
        from graphpipe.plans.verify import verify

        plan = read_document(path, "plan", lambda body: _read(body, str(path)))
        try:
            verify(plan)
        except (InvalidInput, Infeasible) as error:
            where = f"{path}, {error.where}".removesuffix(", ")
            remedy = error.remedy or "Plan again, or mend the file."
            raise type(error)(error.what, where=where, remedy=remedy) from None
        return plan


def one_way_pairs(graph: Graph, groups: Sequence[Iterable[str]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of operator groups, by position, between which values pass but no gradient comes back."""
    if len(graph.differentiable) == len(graph.ops):
        return frozenset()
    group_of = {name: position for position, names in enumerate(groups) for name in names}
    pairs = [(group_of[edge.source], group_of[edge.target], edge.source) for edge in graph.edges]
    returned = {(source, target) for source, target, name in pairs if name in graph.differentiable}
    return frozenset((source, target) for source, target, _ in pairs) - returned


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The form of a plan on disk: the plan and the hashes that a later change of its parts would break."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph_sha256: str
    cluster_sha256: str
    plan: Plan

    @staticmethod
    def of(plan: Plan) -> "PlanFile":
        """Return the file form of a plan."""
        return PlanFile(graph_sha256=plan.graph.fingerprint, cluster_sha256=plan.cluster.fingerprint, plan=plan)


def _read(body: dict[str, Any], where: str) -> Plan:
    file = from_body(PlanFile, _renamed(body), where)
    for field, written in (("graph", file.graph_sha256), ("cluster", file.cluster_sha256)):
        found = digest(body["plan"][field])  # as it was written, maybe before some field was known
        if written != found:
            raise InvalidInput(
                f"the {field} in the file has hash {found[:12]}, the file says {written[:12]}",
                where=where,
                remedy="The file was changed by hand: plan again, or build the plan in Python and save it.",
            )
    return file.plan


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    """Return a plan file's body; what `recompute` says was once said by `memory_policy`."""
    old, plan = {"keep": "none", "recompute": "full"}, body.get("plan")
    stages: object = cast("dict[str, Any]", plan).get("stages") if isinstance(plan, dict) else None
    for stage in cast("list[Any]", stages) if isinstance(stages, list) else []:
        if isinstance(stage, dict) and "recompute" not in stage and stage.get("memory_policy") in old:
            stage["recompute"] = old[stage.pop("memory_policy")]
    return body
