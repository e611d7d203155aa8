"""How a front end gets its plan: given, asked for by settings, or made by a function. All ranks use rank 0's."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.costs.analytic import estimate
from graphpipe.errors import GraphPipeError, Infeasible, InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.graph import Graph, ParameterSlice
from graphpipe.model.capture.capture import Captured
from graphpipe.planning.backwards import choose_backwards
from graphpipe.planning.plan import plan
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.comm.world import World

PlanFunction = Callable[[Graph, CostTable, Cluster, int], Plan]
"""Makes a plan for a graph, its costs, a cluster and a number of samples: `gp.hand_plan` with some stages, say."""
_KINDS = {kind.__name__: kind for kind in (GraphPipeError, InvalidInput, Infeasible)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """What a front end is told about its plan."""

    plan: Plan | str | Path | PlanSettings | PlanFunction | None = None
    """A plan, its file, settings for `gp.plan`, or a function of graph, costs, cluster and number of samples. None:
    `gp.plan` with its defaults."""
    cluster: Cluster | str | None = None
    """The devices, one for each rank, or the name of a preset or a file. None: the processes of this machine, if ranks
    compute on processors."""
    costs: CostTable | None = None
    """What operators cost, from `gp.profile`. None: the estimate for the types of the cluster's devices."""

    def agree(self, captured: Captured, model: nn.Module, batch_size: int, world: World) -> Plan:
        """Return the plan of rank 0 on every rank; all ranks call this.

        Args:
            captured: the model, captured on this rank.
            model: the same, uncaptured.
            batch_size: samples of a mini-batch.
            world: this rank.

        Raises:
            InvalidInput, Infeasible: on every rank: there is no such plan, or the front end cannot follow it.
            PeerLost, PeerStalled: another rank is gone.
        """

        def work() -> dict[str, Any] | None:
            if world.rank:
                return None
            try:
                return {"plan": to_body(self._make(captured, model, batch_size, world))}
            except GraphPipeError as error:
                kind = next(each for each in type(error).__mro__ if each.__name__ in _KINDS).__name__
                return {"kind": kind, "what": error.what, "where": error.where, "remedy": error.remedy}

        told = wait_for_ranks(world, work)[0]
        if "plan" not in told:
            raise _KINDS[told["kind"]](told["what"], where=told["where"], remedy=told["remedy"])
        return from_body(Plan, told["plan"], "the plan of rank 0")

    def _make(self, captured: Captured, model: nn.Module, batch_size: int, world: World) -> Plan:
        choice = self.plan
        if isinstance(choice, str | Path):
            choice = Plan.load(choice)
        if not isinstance(choice, Plan):
            cluster = self._cluster(world)
            costs = self.costs or estimate(captured.graph, cluster)
            if callable(choice):
                choice = choice(captured.graph, costs, cluster, batch_size)
            else:
                choice = plan(captured.graph, costs, cluster, choice, batch_size=batch_size)
        check_followed(choice, batch_size)
        return choose_backwards(choice, model, captured=captured)

    def _cluster(self, world: World) -> Cluster:
        if self.cluster is not None:
            return Cluster.resolve(self.cluster) if isinstance(self.cluster, str) else self.cluster
        if not world.kind.on_host:
            raise InvalidInput(
                f"is not given, and ranks compute on {world.kind.name.upper()} devices",
                where="cluster",
                remedy=f"Name the devices: cluster='dgx-h100:1x{world.size}', or a file (docs/cluster.md).",
            )
        return Cluster.preset(f"local:{world.size}")


def check_followed(plan: Plan, batch_size: int) -> None:
    """Check that a front end, whose optimizer updates the parameters of the user's own model, can follow a plan.

    Raises:
        InvalidInput: the plan is for inference or for other mini-batches, or keeps weights elsewhere than in the model.
    """
    plan.require_training()
    if plan.batch_size != batch_size:
        raise InvalidInput(
            f"the plan is for mini-batches of {plan.batch_size}, the trainer has {batch_size}",
            where="plan",
            remedy="Plan for this size, or change the trainer's batch size.",
        )
    if plan.weights != "flush":
        raise InvalidInput(
            f"the weight policy is '{plan.weights}', and a trainer of another library updates all weights at once",
            where="plan",
            remedy="Plan with weights='flush', or use gp.train.",
        )
    for stage in plan.stages:
        if stage.state != "whole":
            raise InvalidInput(
                f"the replicas shard '{stage.state}', and the trainer's optimizer needs whole weights",
                where=f"stage '{stage.name}'",
                remedy="Plan for devices with more memory, or use gp.train.",
            )
    pieces = (name for op in plan.graph.ops for name in op.parameters if ParameterSlice.parse(name))
    if (piece := next(pieces, None)) is not None:
        raise InvalidInput(
            f"splits a parameter ('{piece}'), and the trainer's optimizer needs whole parameters",
            where="plan",
            remedy="Plan without `split`, or use gp.train.",
        )
