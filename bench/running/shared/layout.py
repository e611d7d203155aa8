"""NVIDIA's published layout of a vision-language model on 17 ranks, and the planner's own, trained on 17 processes.

**Measured**, on the machine named in the JSON file of the same name. The model has the parts of Qwen3.5-VL in tiny
sizes: an image encoder and a projector, whose outputs stand before the words of a language model. The layout is that of
`examples/qwen35_vl/nvidia-17.json`, here with its own degrees: the encoder on one rank, and two stages of the language
model with two replicas of four ranks each, which share out the state of the optimizer. The planner's own layout is for
devices that are so slow that the tiny model takes as long, relative to its messages, as the large one does. Loss and
gradients of a mini-batch are compared with those of plain PyTorch in double precision, and again after an update.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.running.shared.vision import BATCH, inputs, vision_language
from bench.tables import markdown
from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.graph import Graph
from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan

RANKS = 17
FOUR = tuple(range(8)), tuple(range(8, 16))
_SLOW = Cluster(
    name="17 slow devices",
    device_types=(
        DeviceType(
            name="cpu",
            memory_bytes=1e9,
            peak_flops_per_second=1e9,
            memory_bytes_per_second=1e10,
            launch_seconds=1e-7,
            half_peak_flops=1e3,
        ),
    ),
    devices=tuple(Device(name=f"rank-{at}", type="cpu", node="node") for at in range(RANKS)),
    intra_node=Link(latency_seconds=1e-6, bandwidth_bytes_per_second=1e10),
    inter_node=Link(latency_seconds=1e-6, bandwidth_bytes_per_second=1e10),
)


def main() -> None:
    """Run the benchmark, write JSON and table."""
    module = vision_language()
    graph = gp.with_shards(gp.capture(module, inputs(), opaque=[*dict(module.named_blocks())]), module)
    costs = gp.estimate(graph, _SLOW)
    own = gp.plan(graph, costs, _SLOW, batch_size=BATCH, tensor="auto")
    rows = [_row("published", published(graph)), _row("planned", own)]
    header = ["layout", "stages", "ranks", "ranks per replica", "predicted step, ms", "distance, first step", "second"]
    title, _, caption = (__doc__ or "").partition("\n\n")
    lines = [_line(row) for row in rows]
    markdown("layout", title.rstrip("."), caption.strip(), header, lines)
    print(f"saved {save('layout', rows)}")


def published(graph: Graph) -> Plan:
    """Return the published layout."""
    order = [op.name for op in graph.ops]
    layers = sorted({name.split(".")[1] for name in order if name.startswith("layers.")}, key=int)
    first = {f"layers.{at}" for at in layers[: len(layers) // 2]}
    images = tuple(name for name in order if name.startswith(("vision", "projector")))
    second = tuple(
        name for name in order if name.startswith("head") or (name.startswith("layers.") and name not in first)
    )
    rest = tuple(name for name in order if name not in {*images, *second})
    stages = [
        gp.HandStage(name="images", ops=images, devices=(16,), micro_batch=2),
        gp.HandStage(name="first", ops=rest, devices=FOUR[0], micro_batch=2, tensor=4, state="optimizer"),
        gp.HandStage(name="second", ops=second, devices=FOUR[1], micro_batch=2, tensor=4, state="optimizer"),
    ]
    return gp.hand_plan(graph, gp.estimate(graph, _SLOW), _SLOW, batch_size=BATCH, stages=stages)


def _row(name: str, plan: Plan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        plan.save(file)
        arguments = [str(file)]
        environment = {"OMP_NUM_THREADS": "1"}
        launch("bench.running.shared.layout_rank:train", RANKS, arguments=arguments, environment=environment)
        by_rank = [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(RANKS)]
    row = {
        "layout": name,
        "stages": len(plan.stages),
        "ranks": len(plan.used_devices),
        "tensor": [stage.tensor for stage in plan.stages],
        "predicted_seconds": gp.simulate(plan).step_seconds,
        "distances": [max(found[step] for found in by_rank) for step in range(len(by_rank[0]))],
    }
    print(*_line(row), sep="\t", flush=True)
    return row


def _line(row: dict[str, Any]) -> list[object]:
    distances = [f"{each:.0e}" for each in row["distances"]]
    degrees = ", ".join(map(str, row["tensor"]))
    return [row["layout"], row["stages"], row["ranks"], degrees, f"{1e3 * row['predicted_seconds']:.1f}", *distances]
