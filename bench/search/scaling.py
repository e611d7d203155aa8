"""Search time against devices (4 to 1,024) and against operators (9 to 5,001), with the fitted exponents.

Devices: mmt with 64 layers per branch (513 operators), 4 samples per device. Operators: mmt of hidden size 128 with
more and more layers, on 32 devices, 4 samples per device. Seconds are processor time of one search in a process of its
own, capture apart; memory is the most that this process held.
"""

import multiprocessing
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import graphpipe as gp
from bench.case import summit
from bench.record import save
from bench.tables import curves, markdown
from graphpipe.graph import Edge, Op
from graphpipe.model.zoo import mmt

DEVICES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LAYERS = (1, 2, 6, 12, 25, 62, 125, 250, 625)
"""Layers per branch: 8 operators each, and one for the head."""
SAMPLES = 4


def layered(layers: int, hidden: int) -> gp.Graph:
    """Return the graph of mmt with any number of layers: one layer is captured, and repeated."""
    model = mmt.build(mmt.MmtShape(layers=1, hidden=hidden, feed_forward=4 * hidden), "meta")
    one = gp.capture(model.module, model.example_inputs)
    ops: list[Op] = []
    edges: list[Edge] = []
    sent = one.edges[0].bytes_per_sample
    for branch in range(4):
        for layer in range(layers):
            for kind in ("attention", "feed_forward"):
                op = one[f"branch{branch}.layer0.{kind}"]
                own = tuple(name.replace(".layer0.", f".layer{layer}.") for name in op.parameters)
                first = (layer, kind) == (0, "attention")
                inputs = op.model_inputs if first else ()
                ops.append(
                    replace(op, name=op.name.replace("layer0", f"layer{layer}"), parameters=own, model_inputs=inputs)
                )
                if not first:
                    edges.append(Edge(source=ops[-2].name, target=ops[-1].name, bytes_per_sample=sent))
        edges.append(Edge(source=ops[-1].name, target="head", bytes_per_sample=sent))
    return gp.Graph(name=f"mmt-{layers}", ops=(*ops, one["head"]), edges=tuple(edges))


def _search(graph: gp.Graph, devices: int) -> dict[str, Any]:
    cluster = summit(devices)
    costs = gp.estimate(graph, cluster)
    start = time.process_time()
    plan = gp.plan(graph, costs, cluster, batch_size=SAMPLES * devices)
    assert plan.prediction is not None
    return {
        "devices": devices,
        "operators": len(graph.ops),
        "search_seconds": time.process_time() - start,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "samples_per_second": SAMPLES * devices / plan.prediction.step_seconds,
        "stages": len(plan.stages),
        "micro_batch": plan.stages[0].micro_batch,
    }


def _alone(layers: int, hidden: int, devices: int) -> dict[str, Any]:
    # A new process, because the memory of earlier searches would count too.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        row = pool.apply(_search_layered, (layers, hidden, devices))
    print(*_line(row), sep="\t", flush=True)
    return row


def _search_layered(layers: int, hidden: int, devices: int) -> dict[str, Any]:
    return _search(layered(layers, hidden), devices)


def _exponent(rows: Sequence[dict[str, Any]], over: str) -> float:
    """Return the slope of the log-log fit over the larger half, because start-up dominates small searches."""
    upper = rows[len(rows) // 2 :]
    sizes, seconds = (np.log([row[key] for row in upper]) for key in (over, "search_seconds"))
    return float(np.polyfit(sizes, seconds, 1)[0])


def main() -> None:
    """Run the benchmark, write JSON, table and picture."""
    by_devices = [_alone(64, 1024, devices) for devices in DEVICES]
    by_operators = [_alone(layers, 128, 32) for layers in LAYERS]
    exponents = {"devices": _exponent(by_devices, "devices"), "operators": _exponent(by_operators, "operators")}
    fitted = (
        f"Over the larger half of the sizes, seconds grow with devices^{exponents['devices']:.2f} and with "
        f"operators^{exponents['operators']:.2f}."
    )
    caption = (__doc__ or "").partition("\n\n")[2].strip() + f"\n\n{fitted}\n\n![](scaling.svg)"
    header = ["devices", "operators", "search seconds", "peak GiB", "stages", "micro-batch"]
    lines = [_line(row) for row in (*by_devices, *by_operators)]
    print(fitted)
    markdown("scaling", "Search time against devices and operators", caption, header, lines)
    series = {
        "devices (513 operators)": [(row["devices"], row["search_seconds"]) for row in by_devices],
        "operators (32 devices)": [(row["operators"], row["search_seconds"]) for row in by_operators],
    }
    curves("scaling", "Search time of graphpipe (one core)", series, "devices, or operators", "seconds")
    print(f"saved {save('scaling', [*by_devices, *by_operators], exponents=exponents)}")


def _line(row: dict[str, Any]) -> list[str]:
    return [_shown(row[key]) for key in ("devices", "operators", "search_seconds", "peak_gib", "stages", "micro_batch")]


def _shown(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
