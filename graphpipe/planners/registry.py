"""Planners by name: those of GraphPipe, of installed packages, and those that a program registers."""

from graphpipe.planners.baselines.dapple import DAPPLE
from graphpipe.planners.baselines.edgepipe import EDGEPIPE
from graphpipe.planners.baselines.gpipe import GPIPE
from graphpipe.planners.baselines.pipedream import PIPEDREAM
from graphpipe.planners.baselines.pipedream_2bw import PIPEDREAM_2BW
from graphpipe.planners.baselines.piper import PIPER
from graphpipe.planners.graphpipe import GRAPHPIPE
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.spp import SPP
from graphpipe.planners.swapping.dawnpiper import DAWNPIPER
from graphpipe.planners.swapping.vpipe import VPIPE
from graphpipe.plugins import Registry

PLANNERS = Registry(
    "planner",
    Planner,
    "graphpipe.planners",
    own=(GRAPHPIPE, SPP, PIPEDREAM, PIPER, GPIPE, DAPPLE, PIPEDREAM_2BW, DAWNPIPER, VPIPE, EDGEPIPE),
)
"""All planners registered so far."""
DEFAULT = GRAPHPIPE.name


register_planner, find_planner, all_planners = PLANNERS.register, PLANNERS.find, PLANNERS.all


def planner_names(*, trains: bool) -> tuple[str, ...]:
    """Return the names of all planners that plan training, or of those that plan inference."""
    return tuple(name for name, each in all_planners().items() if (each.trains if trains else each.infers))
