"""Planners by name: those of GraphPipe, of installed packages, and those that a program registers."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
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
from graphpipe.plugins import load_plugins, register_by_name

ENTRY_POINTS = "graphpipe.planners"
"""Entry-point group through which an installed package registers a `Planner` for every process."""

_BY_NAME = {
    each.name: each
    for each in (GRAPHPIPE, SPP, PIPEDREAM, PIPER, GPIPE, DAPPLE, PIPEDREAM_2BW, DAWNPIPER, VPIPE, EDGEPIPE)
}
PLANNERS: Mapping[str, Planner] = MappingProxyType(_BY_NAME)
"""All planners registered so far."""
DEFAULT = GRAPHPIPE.name


def register_planner(planner: Planner) -> None:
    """Register a planner, so that callers in this process can choose it by name.

    For the command line and for training, register it from an installed package through an entry point:

        [project.entry-points."graphpipe.planners"]
        mine = "my_package.my_planner:MINE"

    Raises:
        InvalidInput: another planner has this name.
    """
    register_by_name(_BY_NAME, planner, "planner")


def all_planners() -> Mapping[str, Planner]:
    """Return `PLANNERS`, including the planners of installed packages.

    Raises:
        InvalidInput: an installed package's planner cannot be imported or registered.
    """
    _register_installed()
    return PLANNERS


def planner_names(*, trains: bool) -> tuple[str, ...]:
    """Return the names of all planners that plan training, or of those that plan inference."""
    return tuple(name for name, each in all_planners().items() if (each.trains if trains else each.infers))


def find_planner(name: str) -> Planner:
    """Return the planner with this name.

    Raises:
        InvalidInput: the name is unknown; the message gives the nearest one.
    """
    if name not in PLANNERS:
        _register_installed()  # Only now, because reading the entry points takes milliseconds.
    if name not in PLANNERS:
        raise InvalidInput(f"unknown planner '{name}'", remedy=nearest(name, list(PLANNERS)))
    return PLANNERS[name]


@cache
def _register_installed() -> None:
    for _, planner in load_plugins(ENTRY_POINTS, Planner):
        register_planner(planner)
