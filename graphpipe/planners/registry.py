"""The planners by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
from graphpipe.planners.baselines.dapple import plan_dapple
from graphpipe.planners.baselines.gpipe import plan_gpipe
from graphpipe.planners.baselines.pipedream import plan_pipedream
from graphpipe.planners.baselines.pipedream_2bw import plan_pipedream_2bw
from graphpipe.planners.baselines.piper import plan_piper
from graphpipe.planners.graphpipe import plan_graphpipe
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.spp import plan_spp
from graphpipe.plans.plan import Plan

Planner = Callable[[Problem, Options], Plan]

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        "graphpipe": plan_graphpipe,
        "spp": plan_spp,
        "pipedream": plan_pipedream,
        "piper": plan_piper,
        "gpipe": plan_gpipe,
        "dapple": plan_dapple,
        "pipedream-2bw": plan_pipedream_2bw,
    }
)


def planner(name: str) -> Planner:
    """Return the planner of this name.

    Raises:
        InvalidInput: unknown; the nearest name is given.
    """
    if name not in PLANNERS:
        raise InvalidInput(f"unknown planner '{name}'", remedy=nearest(name, list(PLANNERS)))
    return PLANNERS[name]
