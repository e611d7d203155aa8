"""The boxes of the stage graph: their places, size and text."""

from collections.abc import Sequence

from graphpipe.costs.ranks.degrees import dividing_sequence
from graphpipe.plans import Plan
from graphpipe.plans.stage import StageEdge
from graphpipe.report.content.stage_contents import stage_contents
from graphpipe.report.figures.layered import layered
from graphpipe.units import format_bytes, format_seconds

HALF_WIDTH, HALF_HEIGHT = 0.46, 0.32
"""Half the size of a box. The centres of two neighbours are 1 apart."""


def stage_places(plan: Plan) -> list[tuple[float, float]]:
    """Return the centre (x, y) of each stage's box. y grows downwards, centres are at least 1 apart."""
    centres = layered(len(plan.stages), [(edge.source, edge.target) for edge in plan.edges])
    return [(place, float(layer)) for layer, place in centres]


def passes_boxes(places: Sequence[tuple[float, float]], source: int, target: int) -> bool:
    """Return whether a straight arrow from one box to another would cross a third box."""
    (x0, y0), (x1, y1) = places[source], places[target]
    between = [(x, y) for x, y in places if y0 < y < y1]
    return any(abs(x0 + (x1 - x0) * (y - y0) / (y1 - y0) - x) < HALF_WIDTH for x, y in between)


def bow(source: tuple[float, float], target: tuple[float, float]) -> float:
    """Return how far to the right an arrow beside the boxes goes. The longer the arrow, the further."""
    return max(source[0], target[0]) + HALF_WIDTH + 0.1 + 0.05 * (target[1] - source[1])


def right_end(plan: Plan, places: Sequence[tuple[float, float]]) -> float:
    """Return the right end of the picture of a plan, with its arrows beside boxes."""
    bows = [
        bow(places[edge.source], places[edge.target])
        for edge in plan.edges
        if passes_boxes(places, edge.source, edge.target)
    ]
    return max([max(x for x, _ in places) + 0.6, *bows])


def edge_label(edge: StageEdge) -> str:
    """Return the text at an arrow: the bytes of one sample, or that it only orders stages."""
    return format_bytes(edge.bytes_per_sample) if edge.bytes_per_sample else "order only"


def stage_lines(plan: Plan, number: int) -> list[str]:
    """Return the lines in a stage's box: its name, what it holds, its task seconds, devices and micro-batch.

    If it recomputes, offloads or shards, or devices share its replicas, a line says so.
    """
    stage = plan.stages[number]
    devices = "1 device" if len(stage.devices) == 1 else f"{len(stage.devices)} devices"
    samples = f"{stage.degree} × {stage.micro_batch // stage.degree}" if stage.degree > 1 else str(stage.micro_batch)
    seconds = plan.task_seconds(number, stage.devices[0])
    again = [] if stage.recompute == "none" else ["recomputes" + (" all" if stage.recompute == "full" else "")]
    again += ["offloads"] if stage.offload else []
    shards = [] if stage.state == "whole" else [f"shards {stage.state}"]
    shards += [] if stage.tensor == 1 else [f"{stage.tensor} devices per replica"]
    shards += ["sequence divided"] if dividing_sequence(plan.graph, stage.ops, stage.tensor) else []
    holds = [line for line in stage_contents(plan, number) if line != stage.name]
    times = f"F {format_seconds(seconds.forward)}, B {format_seconds(seconds.backward)}"
    return [stage.name, *holds, times, f"{devices}, micro {samples}", *again, *shards]
