"""LayerPipe: gradients as tasks of their own on 7 to 9 processors, against PipeDream's chains of stages.

The model of the published comparison, as far as it can be reconstructed: a task takes as long as its layer has
multiplications, the three tasks of a layer are equally long, messages take no time, and the longest task is assigned
first. The stages of PipeDream are those with the least slowest stage. Published ratios are cut off after two digits.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.graph import Edge, Op
from graphpipe.planners.gradients_apart import layers_of, longest_first, place_gradients
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTasks
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.simulator import step_seconds
from graphpipe.simulator.round_seconds import round_seconds

PROCESSORS = (7, 8, 9)
PUBLISHED = {"vgg-16": (1.20, 1.38, 1.60), "resnet-50": (1.16, 1.05, 1.11)}
"""Period of PipeDream over that of LayerPipe, by number of processors."""
_PIXELS = {64: 56, 128: 28, 256: 14, 512: 7}
"""Height and width of the values of a layer, by its channels (in a bottleneck block: by its inner channels)."""
HEADER = ("model", "processors", "published", "longest first", "planned")
CAPTION = (
    "Period of PipeDream's chain of stages over the period with gradients apart, **simulated**, with the work of a "
    "layer as its seconds. `longest first` is the assignment that gives the published ratios. `planned` is what "
    "GraphPipe chooses."
)


def vgg() -> list[float]:
    """Return the millions of multiplications of the layers of VGG-16, for an image of 224 x 224."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    pixels = [224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14]
    convolutions = [9 * one * other * size**2 for one, other, size in zip(channels, channels[1:], pixels, strict=False)]
    return [count / 1e6 for count in (*convolutions, 25088 * 4096, 4096 * 4096, 4096 * 1000)]


def resnet() -> list[float]:
    """Return the same of the 16 bottleneck blocks of ResNet-50, whose first convolution has the stride."""
    found: list[float] = []
    before = 64
    for (inner, size), blocks in zip(_PIXELS.items(), (3, 4, 6, 3), strict=True):
        for _ in range(blocks):
            outer = 4 * inner
            shortcut = before * outer if before != outer else 0
            found.append((before * inner + 9 * inner**2 + inner * outer + shortcut) * size**2 / 1e6)
            before = outer
    return found


def chain_plan(work: Sequence[float], processors: int) -> gp.Plan:
    """Return PipeDream's plan of a chain of layers: the stages with the least slowest one, each on one processor."""
    cluster = gp.Cluster.preset(f"summit:1x{processors}")
    names = [f"layer{number}" for number in range(len(work))]
    ops = tuple(Op(name=name, parameter_bytes=4.0, output_bytes_per_sample=4.0) for name in names)
    edges = tuple(Edge(source=one, target=other, bytes_per_sample=4.0) for one, other in pairwise(names))
    graph = gp.Graph(name="chain", ops=ops, edges=edges)
    rows: list[OpCost] = []
    for name, each in zip(names, work, strict=True):
        third = Curve(lines=((0.0, each / 3),))
        rows.append(
            OpCost(
                op=name,
                device_type="v100",
                forward=third,
                input_gradient=third,
                weight_gradient=third,
                source="imported",
            )
        )
    costs = gp.CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows))
    stages = [
        gp.HandStage(ops=tuple(names[first:stop]), devices=(device,), micro_batch=1)
        for device, (first, stop) in enumerate(_cuts(work, processors))
    ]
    return gp.hand_plan(graph, costs, cluster, batch_size=1, stages=stages, weights="stash")


def _cuts(work: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """Return the intervals of a chain with the least largest sum."""
    sums = [0.0, *accumulate(work)]
    best = {stop: (sums[stop], [(0, stop)]) for stop in range(1, len(work) + 1)}
    for count in range(2, stages + 1):
        best = {
            stop: min(
                (max(best[first][0], sums[stop] - sums[first]), [*best[first][1], (first, stop)])
                for first in range(count - 1, stop)
            )
            for stop in range(count, len(work) + 1)
        }
    return best[len(work)][1]


def ratios(work: Sequence[float], processors: int) -> tuple[float, float]:
    """Return the period of PipeDream over that of the longest tasks first, and over that of the planned tasks."""
    plan = chain_plan(work, processors)
    tasks = LayerTasks.of(plan.cost_model, layers_of(plan), 1, plan.batch_size)
    listed = Rounds(work=tasks, device_of=longest_first(tasks, plan.used_devices))
    period = step_seconds(plan)
    return period / round_seconds(listed), period / round_seconds(place_gradients(plan))


def main() -> None:
    """Compare, and write JSON and table."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for name, work in (("vgg-16", vgg()), ("resnet-50", resnet())):
        for processors, published in zip(PROCESSORS, PUBLISHED[name], strict=True):
            listed, planned = ratios(work, processors)
            row = {"processors": processors, "published": published, "longest first": listed, "planned": planned}
            rows.append({"model": name, **row})
            lines.append([name, processors, f"{published:.2f}", f"{listed:.3f}", f"{planned:.3f}"])
            print(*lines[-1])
    save("layerpipe", rows)
    markdown("layerpipe", "LayerPipe", CAPTION, HEADER, lines)
