"""The boxes of the stage graph: their places, size and text."""

from graphpipe.plans import Plan, Stage
from graphpipe.report.figures.layers import layered

HALF_WIDTH, HALF_HEIGHT = 0.43, 0.27
"""Half the size of a box. The centres of two neighbours are 1 apart."""


def stage_places(plan: Plan) -> list[tuple[float, float]]:
    """Return the centre (x, y) of each stage's box. y grows downwards, centres are at least 1 apart."""
    found = layered(len(plan.stages), [(edge.source, edge.target) for edge in plan.edges])
    return [(place, float(layer)) for layer, place in found]


def stage_lines(stage: Stage) -> list[str]:
    """Return the lines in a stage's box: its name, devices, micro-batch, and whether it recomputes or shards."""
    devices = "1 device" if stage.degree == 1 else f"{stage.degree} devices"
    each = f"{stage.degree} × {stage.micro_batch // stage.degree}" if stage.degree > 1 else str(stage.micro_batch)
    again = [] if stage.recompute == "none" else ["recomputes" + (" all" if stage.recompute == "full" else "")]
    shards = [] if stage.state == "whole" else [f"shards {stage.state}"]
    return [stage.name, devices, f"micro {each}", *again, *shards]
