"""PipeDream-2BW against GPipe and against tensor with data parallelism: a GPT of 2.5 billion parameters on 64 V100.

**Simulated** on the analytic V100 with 16 GB: eight nodes of eight, 25 Gb/s for each node, in fp16 with weights in
fp32. The model has 54 layers of width 1920, and texts of 512 tokens. `2BW` is the planner `pipedream-2bw` with
`double-buffer` weights. `tensor x data` is one stage whose devices share its layers in groups of 2, 4 or 8 inside a
node: the best of all micro-batches, with and without recomputation. `ours` is the default, with a flush. The
published figure (Narayanan et al., ICML 2021) is up to 6.9 times the throughput of optimised baselines. Its costs are
not published.
"""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.search.language.language_model import LanguageModel
from bench.tables import markdown
from graphpipe.plans.stage import Recompute
from graphpipe.simulator import step_seconds

MODEL = LanguageModel(layers=54, width=1920, heads=24, tokens=512, precision="fp16")
NODES, PER_NODE = 8, 8
NODE_BYTES_PER_SECOND = 25e9 / 8
BATCHES = (64, 128, 256, 512)
PUBLISHED = 6.9
HEADER = ("batch", "2BW", "GPipe", "tensor x data", "ours", "2BW over GPipe", "2BW over tensor x data")
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")


def cluster() -> gp.Cluster:
    """Return the cluster. A device has its share of the node's link to the network."""
    found = gp.Cluster.preset(f"summit:{NODES}x{PER_NODE}")
    link = replace(found.inter_node, bandwidth_bytes_per_second=NODE_BYTES_PER_SECOND / PER_NODE)
    return replace(found, inter_node=link)


def tensor_and_data(graph: gp.Graph, costs: gp.CostTable, devices: gp.Cluster, batch: int) -> float:
    """Return the samples per second of the best plan of one stage whose replicas are shared."""
    every, best = tuple(range(NODES * PER_NODE)), 0.0
    for tensor, parts, recompute in product((2, 4, 8), (1, 2, 4, 8, 16, 32, 64), RECOMPUTE):
        if batch % parts or (batch // parts) % (len(every) // tensor):
            continue
        stage = gp.HandStage(ops=("*",), devices=every, micro_batch=batch // parts, recompute=recompute, tensor=tensor)
        with suppress(gp.Infeasible):
            plan = gp.hand_plan(graph, costs, devices, batch_size=batch, stages=[stage])
            best = max(best, batch / step_seconds(plan))
    return best


def case_row(batch: int) -> dict[str, Any]:
    """Return the samples per second of every way to train with one size of mini-batches."""
    graph, devices = MODEL.graph(), cluster()
    costs = gp.estimate(graph, devices)
    ways: dict[str, dict[str, Any]] = {
        "2BW": {"planner": "pipedream-2bw", "weights": "double-buffer"},
        "GPipe": {"planner": "gpipe"},
        "ours": {},
    }
    plans = {name: gp.plan(graph, costs, devices, batch_size=batch, **settings) for name, settings in ways.items()}
    rates = {name: batch / step_seconds(plan) for name, plan in plans.items()}
    return {"batch": batch, **rates, "tensor x data": tensor_and_data(graph, costs, devices, batch)}


def main() -> None:
    """Run the benchmark, and write JSON and table."""
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        rows.append(case_row(batch))
        print(*_line(rows[-1]), sep="\t", flush=True)
    title, _, caption = (__doc__ or "").partition("\n\n")
    lines = [_line(row) for row in rows]
    markdown("double-buffer", title.rstrip("."), f"{caption.strip()} Cells: samples per second.", HEADER, lines)
    print(f"saved {save('double-buffer', rows, published=PUBLISHED)}")


def _line(row: dict[str, Any]) -> list[object]:
    rates = [f"{row[name]:.0f}" for name in HEADER[1:5]]
    return [row["batch"], *rates, *(f"{row['2BW'] / row[name]:.2f}" for name in ("GPipe", "tensor x data"))]
