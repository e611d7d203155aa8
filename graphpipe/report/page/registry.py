"""The panels of the report, from top to bottom: GraphPipe's own, then those of installed packages."""

from graphpipe.plugins import Registry
from graphpipe.report.page import explanation_panel, memory_panel, plan_panels, run_panels, step_panels
from graphpipe.report.page.panel import Panel

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
PANELS = Registry("panel", Panel, "graphpipe.panels", own=_PANELS)
"""The panels registered so far, from top to bottom. A new one is shown below them."""
register_panel, all_panels = PANELS.register, PANELS.all
