"""The plan: a directed acyclic graph of stages on devices, complete enough to simulate and to run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from graphpipe.cluster import Cluster
from graphpipe.cluster.default_fields import without_default_fields
from graphpipe.cluster.ring import Ring
from graphpipe.costs import CostModel, CostTable, TaskSeconds
from graphpipe.costs.ranks.rank_costs import rank_costs
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.files.json_body import digest, from_body, to_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.graph import Graph
from graphpipe.graph.operator_graph import fingerprinted
from graphpipe.plans.joint_edges import NONE, JointEdges, joint_edges, one_way_bytes, one_way_pairs, whole_values
from graphpipe.plans.older_plans import with_current_fields, with_version_1_fields
from graphpipe.plans.prediction import Prediction
from graphpipe.plans.sharding import count_micro_batches
from graphpipe.plans.stage import Predictor, Stage, StageEdge, WeightPolicy
from graphpipe.plans.tied_gradients import TiedGradients, tied_gradients_of
from graphpipe.plans.verify import verify


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a cluster computes one mini-batch of a graph. A file of it is enough to verify, simulate, report and run it.

    Construction does not check the stages; `graphpipe.plans.verify.verify` does.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph: Graph
    cluster: Cluster
    costs: CostTable
    batch_size: int
    stages: tuple[Stage, ...]
    """The stages, in topological order."""
    edges: tuple[StageEdge, ...]
    schedule: str = "1f1b"
    weights: WeightPolicy = "flush"
    """Which weights tasks use. `flush`: the pipeline drains after each mini-batch. If not, the next follows at once."""
    predictor: Predictor = ""
    """What predicts the weights under the policy `predict`."""
    planner: str = "hand"
    search_seconds: float = 0.0
    prediction: Prediction | None = None
    trains: bool = True
    """Whether it trains. If not, figures leave out backwards, gradients, optimizer state and saved tensors."""

    @cached_property
    def cost_model(self) -> CostModel:
        """The look-up of every cost of whole operators, and of messages."""
        return CostModel.of(self.graph, self.costs, self.cluster, trains=self.trains)

    def costs_of(self, stage: int) -> CostModel:
        """Return the costs of a stage on each of its devices, which may share its replicas."""
        here = self.stages[stage]
        return self.cost_model if here.tensor == 1 else rank_costs(self.cost_model, here.replicas)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages each stage receives from, ascending."""
        return self._sorted((edge.target, edge.source) for edge in self.edges)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages each stage sends to, ascending."""
        return self._sorted((edge.source, edge.target) for edge in self.edges)

    def _sorted(self, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        others: list[list[int]] = [[] for _ in self.stages]
        for stage, other in pairs:
            others[stage].append(other)
        return tuple(tuple(sorted(some)) for some in others)

    @cached_property
    def gradient_edges(self) -> frozenset[int]:
        """Positions in `edges` along which gradients are sent back: all except those that leave frozen branches.

        An edge without values only orders the stages of a sequential pipeline. It also orders their backwards.
        """
        if not self.trains:
            return frozenset()
        frozen = one_way_pairs(self.graph, [stage.ops for stage in self.stages])
        return frozenset(n for n, edge in enumerate(self.edges) if (edge.source, edge.target) not in frozen)

    @cached_property
    def joint_edges(self) -> JointEdges:
        """The edges that carry values for each other, because their targets are on the same devices."""
        return joint_edges(self.graph, self.stages, self.edges, self.gradient_edges)

    @cached_property
    def whole_values(self) -> list[dict[tuple[str, str], float]]:
        """The values that each edge carries, by operator and name, with the bytes per sample."""
        return whole_values(self.graph, self.stages, self.edges)

    @cached_property
    def one_way_bytes(self) -> list[float]:
        """The bytes per sample of each edge's values that get no gradient."""
        return one_way_bytes(self.graph, self.stages, self.edges)

    def sent_bytes(self, edge: int, without: tuple[int, ...] = NONE, *, backward: bool = False) -> float:
        """Return the bytes per sample that the messages of an edge carry.

        Args:
            edge: its position.
            without: edges that carry some of the values too, which are left out.
            backward: whether the messages carry gradients, which not all values have.
        """
        count = self.edges[edge].bytes_per_sample - (self.one_way_bytes[edge] if backward else 0.0)
        if not without or not count:
            return count
        own = self.whole_values[edge]
        common = own.keys() & {name for other in without for name in self.whole_values[other]}
        return max(0.0, count - sum(own[name] for name in common if not backward or name not in self.graph.one_way))

    @cached_property
    def gradient_sources(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages that send gradients to each stage, ascending: its successors, if it trains."""
        return self._sorted((self.edges[at].source, self.edges[at].target) for at in self.gradient_edges)

    @cached_property
    def gradient_targets(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the stages that each stage sends gradients to, ascending: its predecessors, if they train."""
        return self._sorted((self.edges[at].target, self.edges[at].source) for at in self.gradient_edges)

    @cached_property
    def tied_gradients(self) -> tuple[TiedGradients, ...]:
        """The gradients of parameters that several stages share."""
        return tied_gradients_of(self.graph, self.stages) if self.trains else ()

    def tied_parameters(self, stage: int) -> frozenset[str]:
        """Return the names of the parameters that a stage shares with other stages."""
        return frozenset(name for tied in self.tied_gradients if stage in tied.stages for name in tied.parameters)

    def task_seconds(
        self, stage: int, device: int, loads: tuple[float, ...] | None = None, samples: float | None = None
    ) -> TaskSeconds:
        """Return the seconds of a stage's tasks on one of its devices, with what replicas exchange inside them.

        If the weights are gathered layer by layer, a forward gathers all of them, and a backward gathers them again and
        sums the gradients. It takes the longer of computing and exchanging, or both if transfers occupy the devices.

        Args:
            stage: its position.
            device: position in the cluster's devices.
            loads: as for `CostModel.task_seconds`.
            samples: that the device computes; None: its share of a whole micro-batch.
        """
        here = self.stages[stage]
        share = here.micro_batch / here.degree if samples is None else samples
        seconds = self.costs_of(stage).task_seconds(here.ops, device, share, here.recompute, loads)
        if here.state != "layers" or here.degree == 1:
            return seconds
        gather, reduce = self._exchange_seconds(stage)
        again = 2 * gather if here.recompute == "full" else gather
        forward, backward = self._beside(seconds.forward, gather), self._beside(seconds.backward, again + reduce)
        inputs = backward - seconds.weight_gradient
        return replace(seconds, forward=forward, input_gradient=inputs, input_half=max(inputs, seconds.input_half))

    def tasks_seconds(self, stage: int) -> list[TaskSeconds]:
        """Return `task_seconds` on each device type that occurs among the devices of a stage."""
        devices = self.stages[stage].devices[: None if len(self.cluster.types) > 1 else 1]
        kinds = {self.cluster.devices[device].type: device for device in devices}
        return [self.task_seconds(stage, device) for device in kinds.values()]

    def _beside(self, computing: float, exchanging: float) -> float:
        return max(computing, exchanging) if self.cluster.overlap else computing + exchanging

    def _exchange_seconds(self, stage: int) -> tuple[float, float]:
        """Return the seconds in which replicas gather the weights of all layers, and sum their gradients."""
        here, held, ring = self.stages[stage], self.costs_of(stage).parameter_bytes, self._ring(stage)
        weights = held.weights(here.ops) - held.tied(here.ops)
        gather, reduce = (
            ring.gather_seconds(count) + ring.gather_work_seconds(count)
            for count in (weights, self.reduced_bytes(stage))
        )
        return gather, reduce

    def _ring(self, stage: int) -> Ring:
        """Return the slowest of the rings of replicas: devices of equal rank sum and gather the same parts."""
        here = self.stages[stage]
        if here.tensor == 1:
            return self.cost_model.ring(here.devices)
        return max(map(self.cost_model.ring, here.peers), key=lambda ring: ring.reduce_seconds(1.0))

    def reduced_bytes(self, stage: int) -> float:
        """Return the bytes of gradients that the replicas of a stage sum: all except those of tied parameters."""
        return self.costs_of(stage).parameter_bytes.gradients(self.stages[stage].ops, self.tied_parameters(stage))

    def reduce_seconds(self, stage: int) -> float:
        """Return the seconds in which the replicas of a stage sum their gradients: an all-reduce.

        If they shard the gradients too, it is a reduce-scatter. If layers do so in every backward, nothing is left.
        """
        ring, count = self._ring(stage), self._reduced_at_end(stage)
        return ring.gather_seconds(count) if self.stages[stage].state == "all" else ring.reduce_seconds(count)

    def reduce_work_seconds(self, stage: int) -> float:
        """Return the seconds of work that the messages of this sum cost each replica, if devices handle messages."""
        ring, count = self._ring(stage), self._reduced_at_end(stage)
        return ring.gather_work_seconds(count) if self.stages[stage].state == "all" else ring.reduce_work_seconds(count)

    def gather_seconds(self, stage: int) -> float:
        """Return the seconds in which replicas that shard the weights of a stage gather them before the first task."""
        return self._ring(stage).gather_seconds(count) if (count := self._gathered_bytes(stage)) else 0.0

    def gather_work_seconds(self, stage: int) -> float:
        """Return the seconds of work that the messages of this gather cost each replica, if devices handle messages."""
        return self._ring(stage).gather_work_seconds(count) if (count := self._gathered_bytes(stage)) else 0.0

    def _reduced_at_end(self, stage: int) -> float:
        here = self.stages[stage]
        return 0.0 if here.state == "layers" and here.degree > 1 else self.reduced_bytes(stage)

    def _gathered_bytes(self, stage: int) -> float:
        here, held = self.stages[stage], self.costs_of(stage).parameter_bytes
        return held.weights(here.ops) - held.tied(here.ops) if here.state == "all" else 0.0

    def optimizer_seconds(self, stage: int) -> float:
        """Return the seconds from summed gradients to new weights on every replica of a stage.

        If the replicas shard only the optimizer's state, each updates its share of the weights. An all-gather follows.
        """
        here = self.stages[stage]
        seconds = self.costs_of(stage).optimizer_seconds(here.ops, here.state, here.degree)
        if here.state != "optimizer":
            return seconds
        ring, count = self._ring(stage), self.reduced_bytes(stage)
        return seconds + ring.gather_work_seconds(count) + ring.gather_seconds(count)

    def tied_gradients_seconds(self, tied: TiedGradients) -> float:
        """Return the seconds of the all-reduce over all devices that share these parameters."""
        return max(self.cost_model.all_reduce_seconds(tied.bytes, ring) for ring in tied.rings)

    def tied_gradients_work_seconds(self, tied: TiedGradients) -> float:
        """Return the seconds of work that the messages of this sum cost each device, if devices handle messages."""
        return max(self.cost_model.all_reduce_work_seconds(tied.bytes, ring) for ring in tied.rings)

    @property
    def depth(self) -> int:
        """Number of stages on the longest path of the stage graph."""
        return 1 + max(self.stages_after)

    @cached_property
    def stages_after(self) -> tuple[int, ...]:
        """Number of stages on the longest path from each stage to a sink, the stage itself left out."""
        longest = [0] * len(self.stages)
        for stage in reversed(range(len(self.stages))):
            longest[stage] = max((1 + longest[other] for other in self.successors[stage]), default=0)
        return tuple(longest)

    @cached_property
    def used_devices(self) -> tuple[int, ...]:
        """Devices that host a stage, ascending."""
        return tuple(sorted({device for stage in self.stages for device in stage.devices}))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all fields except the prediction and the search's seconds, which do not affect the run."""
        return digest(with_version_1_fields(to_body(replace(self, prediction=None, search_seconds=0.0))))

    @property
    def shares_devices(self) -> bool:
        """Whether a device hosts several stages."""
        return sum(len(stage.devices) for stage in self.stages) > len(self.used_devices)

    @property
    def shares_replicas(self) -> bool:
        """Whether several devices share a replica of any stage."""
        return any(stage.tensor > 1 for stage in self.stages)

    @property
    def shards_state(self) -> bool:
        """Whether the replicas of any stage shard their state."""
        return any(stage.state != "whole" for stage in self.stages)

    def require_training(self) -> None:
        """Check that the plan trains.

        Raises:
            InvalidInput: it is for inference.
        """
        if not self.trains:
            remedy = "Run it with gp.InferencePipeline, or plan for training."
            raise InvalidInput("the plan is for inference", where="plan", remedy=remedy)

    def micro_batches(self, stage: int) -> int:
        """Return the number of micro-batches of a stage in one mini-batch."""
        return count_micro_batches(self.batch_size, self.stages[stage].micro_batch)

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON document, with the hashes of graph and cluster inside."""
        write_document(path, "plan", PlanFile.of(self))

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan written by `save`, and verify it.

        Raises:
            InvalidInput: not a plan file of this schema version, a hash does not match, or an unsound plan.
        """
        plan = read_document(path, "plan", lambda body: _read(body, str(path)))
        try:
            verify(plan)
        except (InvalidInput, Infeasible) as error:
            where = f"{path}, {error.where}".removesuffix(", ")
            remedy = error.remedy or "Plan again, or correct the file."
            raise type(error)(error.what, where=where, remedy=remedy) from None
        return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan on disk, with hashes that show whether its graph or cluster was changed later."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph_sha256: str
    cluster_sha256: str
    plan: Plan

    @staticmethod
    def of(plan: Plan) -> "PlanFile":
        """Return the file form of a plan."""
        return PlanFile(graph_sha256=plan.graph.fingerprint, cluster_sha256=plan.cluster.fingerprint, plan=plan)


def _read(body: dict[str, Any], where: str) -> Plan:
    file = from_body(PlanFile, with_current_fields(body), where)
    # They may lack newer fields.
    graph, cluster = fingerprinted(body["plan"]["graph"]), without_default_fields(body["plan"]["cluster"])
    for field, written, text in (("graph", file.graph_sha256, graph), ("cluster", file.cluster_sha256, cluster)):
        actual = digest(text)
        if written != actual:
            raise InvalidInput(
                f"the {field} in the file has hash {actual[:12]}, but the file records {written[:12]}",
                where=where,
                remedy="The file was changed by hand. Plan again, or build the plan in Python and save it.",
            )
    return file.plan
