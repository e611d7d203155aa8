"""The panels of the report, from top to bottom: GraphPipe's own, then those of installed packages."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from graphpipe.plugins import load_plugins, register_by_name
from graphpipe.report.page import explanation_panel, memory_panel, plan_panels, run_panels, step_panels
from graphpipe.report.page.panel import Panel

ENTRY_POINTS = "graphpipe.panels"
"""The entry points by which an installed package registers a `Panel`."""

_PANELS = (
    plan_panels.STAGES,
    step_panels.TIMELINE,
    explanation_panel.EXPLANATION,
    step_panels.DIFFERENCES,
    step_panels.MEMORY,
    memory_panel.CHOICES,
    run_panels.TRAINING,
    run_panels.PLANNERS,
    plan_panels.MODEL,
    plan_panels.ORIGIN,
)
_BY_NAME = {panel.name: panel for panel in _PANELS}


def register_panel(panel: Panel) -> None:
    """Register a panel. It is shown below those that were registered before it.

    Raises:
        InvalidInput: another panel has this name.
    """
    register_by_name(_BY_NAME, panel, "panel")


def all_panels() -> Mapping[str, Panel]:
    """Return the panels by name, from top to bottom.

    Raises:
        InvalidInput: an installed package's panel cannot be imported or registered.
    """
    _register_installed()
    return MappingProxyType(_BY_NAME)


@cache
def _register_installed() -> None:
    for _, panel in load_plugins(ENTRY_POINTS, Panel):
        register_panel(panel)
