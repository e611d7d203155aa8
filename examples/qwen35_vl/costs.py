"""Writes `graph.json` and `costs.json`: a model of the shape of Qwen3.5-VL 27B, and its estimated costs on H100.

    python examples/qwen35_vl/costs.py [SEQUENCE]

docs/published-layout.md says what is assumed.
"""

import sys
from dataclasses import replace
from pathlib import Path

import graphpipe as gp
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.model.zoo import zoo

FOLDER = Path(__file__).parent
IMAGE = 768
"""Pixels of a side: of the data set RDR."""
PATCHES = (IMAGE // 16) ** 2
GROUP = 4
"""GPUs that compute a layer together."""
STATE = 9.0
"""bf16 weights and gradients, and fp32 gradients, weights and two moments: 18 bytes instead of 2."""


def make_graph(sequence: int) -> gp.Graph:
    """Return the graph for samples of one image and `sequence` positions. The image takes a quarter of its patches."""
    module, inputs = zoo(
        "vision-language",
        pixels=IMAGE,
        patch=16,
        vision_layers=27,
        vision_hidden=1152,
        vision_heads=16,
        vision_feed_forward=4304,
        layers=64,
        sequence=sequence - PATCHES // 4,
        hidden=5120,
        heads=40,
        feed_forward=3 * 17408 // 2,  # two matrices as large as the three of SwiGLU
        vocabulary=248320,
    )
    tensors = {name: each.bfloat16() if each.is_floating_point() else each for name, each in inputs.items()}
    return gp.capture(module.bfloat16(), tensors)


def make_costs(graph: gp.Graph, cluster: gp.Cluster, sequence: int) -> CostTable:
    """Return the estimated costs, with the sums over the GPUs of a group after each attention and feed-forward.

    Costs have one speed of the optimizer. It is that of the groups, which hold nearly all parameters.
    """
    costs = gp.estimate(graph, cluster, state_bytes_per_parameter_byte=STATE)
    speeds = {kind.name: kind.memory_bytes_per_second for kind in cluster.device_types}
    return replace(
        costs,
        rows=tuple(_with_sums(row, sequence) for row in costs.rows),
        optimizer_seconds_per_parameter_byte=costs.optimizer_seconds_per_parameter_byte
        * min(speeds.values())
        / speeds["group"],
    )


def _with_sums(row: OpCost, sequence: int) -> OpCost:
    if row.device_type != "group" or not row.op.endswith(("attention", "feed_forward")):
        return row
    values = PATCHES * 1152 if row.op.startswith("vision") else sequence * 5120
    # A ring sends 2 (g - 1) / g of the bytes in 2 (g - 1) messages.
    link = gp.Cluster.preset("dgx-h100:1x8").intra_node
    fixed = 2 * (GROUP - 1) * link.latency_seconds
    each = 2 * (GROUP - 1) / GROUP * 2 * values / link.bandwidth_bytes_per_second
    return replace(
        row, forward=_longer(row.forward, fixed, each), input_gradient=_longer(row.input_gradient, fixed, each)
    )


def _longer(curve: Curve, fixed: float, each: float) -> Curve:
    return Curve(lines=tuple((start + fixed, slope + each) for start, slope in curve.lines))


def main(sequence: int = 2048) -> None:
    """Write the files into the folder of the call."""
    graph = make_graph(sequence)
    graph.save("graph.json")
    make_costs(graph, gp.Cluster.load(FOLDER / "cluster.toml"), sequence).save("costs.json")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
