"""The boxes of the stage graph: their places, size and text."""

from graphpipe.plans import Plan
from graphpipe.report.content.stage_contents import stage_contents
from graphpipe.report.figures.layers import layered
from graphpipe.units import format_seconds

HALF_WIDTH, HALF_HEIGHT = 0.46, 0.32
"""Half the size of a box. The centres of two neighbours are 1 apart."""


def stage_places(plan: Plan) -> list[tuple[float, float]]:
    """Return the centre (x, y) of each stage's box. y grows downwards, centres are at least 1 apart."""
    found = layered(len(plan.stages), [(edge.source, edge.target) for edge in plan.edges])
    return [(place, float(layer)) for layer, place in found]


def stage_lines(plan: Plan, number: int) -> list[str]:
    """Return the lines in a stage's box: its name, what it holds, its task seconds, devices and micro-batch.

    If it recomputes or shards, a line says so.
    """
    stage = plan.stages[number]
    devices = "1 device" if stage.degree == 1 else f"{stage.degree} devices"
    each = f"{stage.degree} × {stage.micro_batch // stage.degree}" if stage.degree > 1 else str(stage.micro_batch)
    seconds = plan.cost_model.task_seconds(
        stage.ops, stage.devices[0], stage.micro_batch / stage.degree, stage.recompute
    )
    again = [] if stage.recompute == "none" else ["recomputes" + (" all" if stage.recompute == "full" else "")]
    shards = [] if stage.state == "whole" else [f"shards {stage.state}"]
    holds = [line for line in stage_contents(plan, number) if line != stage.name]
    times = f"F {format_seconds(seconds.forward)}, B {format_seconds(seconds.backward)}"
    return [stage.name, *holds, times, f"{devices}, micro {each}", *again, *shards]
