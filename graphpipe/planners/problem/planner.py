"""The record that a planner declares: its name, its function and its traits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A planner: its function and its traits. `graphpipe.planners.registry` lists all of them by name."""

    name: str
    """The name by which callers choose the planner; its plans carry it as `Plan.planner`."""
    plan: Callable[[Problem, Options], Plan]
    """Returns the best plan found. Raises `Infeasible` if no plan fits in memory."""
    pipeline: Literal["graph", "chain"]
    """`graph` if stages that do not feed each other run side by side. `chain` if every stage follows the one before
    it."""
    trains: bool = True
    """Whether it plans training."""
    infers: bool = False
    """Whether it plans inference."""
    honours: frozenset[str] = frozenset({"micro_batch"})
    """Fields of `PlanSettings` that its plans follow, beside those that `gp.plan` follows with every planner. `gp.plan`
    refuses others."""
    recomputes: bool = False
    """Whether stages may recompute in the backward (`Stage.recompute`) if memory is short. GraphPipe's own planners may
    then also offload (`Stage.offload`) and shard state (`Stage.state`)."""
    default_schedule: Literal["1f1b", "auto"] = "1f1b"
    """The schedule if the caller does not choose one. `auto`: the schedule with the shortest step. `1f1b`: the schedule
    in the planner's plan."""
    own_schedule: str = "1f1b"
    """The schedule in the planner's plan."""
