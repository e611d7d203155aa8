"""Tensor parallelism: language models of 32 and 64 layers on 64 A100, with one device per replica and with several.

**Simulated** on the analytic model of the `dgx-a100` preset (nothing was measured). Layers are those of GPT with a
width of 4096 and texts of 2048 tokens, in fp32, or in bf16 with weights in fp32. Their figures follow from formulas
(Korthikanti et al., 2022), with fused attention. In bf16 a layer takes a sixteenth of the time, so that sums and small
products weigh more.
"""

import time
from itertools import product
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.search.language.language_model import LanguageModel
from bench.tables import geometric_mean, markdown
from graphpipe.graph.operator import Precision

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CASES = ((32, 32), (32, 64), (32, 128), (64, 64), (64, 128))
"""Layers, and samples of a mini-batch."""
CLUSTER = "dgx-a100:8x8"
TARGET = 1.15
"""Least gain at one sample per device."""
HEADER = ("precision", "layers", "batch", "1, ms", "auto, ms", "gain", "stages", "devices per replica", "search s")


def case_row(precision: Precision, layers: int, batch: int) -> dict[str, Any]:
    """Return the steps with one device per replica, and with as many as the planner chooses."""
    model = LanguageModel(layers=layers, width=4096, heads=32, tokens=2048, precision=precision)
    graph, cluster = model.graph(), gp.Cluster.preset(CLUSTER)
    costs = gp.estimate(graph, cluster)
    alone = gp.plan(graph, costs, cluster, batch_size=batch, stages_per_device=1)
    start = time.perf_counter()
    shared = gp.plan(graph, costs, cluster, batch_size=batch, stages_per_device=1, tensor="auto")
    assert alone.prediction is not None
    assert shared.prediction is not None
    return {
        "precision": precision,
        "layers": layers,
        "batch": batch,
        "alone_seconds": alone.prediction.step_seconds,
        "shared_seconds": shared.prediction.step_seconds,
        "gain": alone.prediction.step_seconds / shared.prediction.step_seconds,
        "stages": len(shared.stages),
        "tensor": [stage.tensor for stage in shared.stages],
        "schedules": [alone.schedule, shared.schedule],
        "search_seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run the benchmark, write JSON and table, and print the target."""
    rows: list[dict[str, Any]] = []
    for precision, (layers, batch) in product(PRECISIONS, CASES):
        rows.append(case_row(precision, layers, batch))
        print(*_line(rows[-1]), sep="\t", flush=True)
    gains = [[row["gain"] for row in rows if row["precision"] == each] for each in PRECISIONS]
    wanted = [row["gain"] for row in rows if row["batch"] == 64 and row["precision"] == "fp32"]
    words = f"In the mean {geometric_mean(gains[0]):.2f} in fp32 and {geometric_mean(gains[1]):.2f} in bf16. "
    words += f"At one sample per device in fp32 at least {min(wanted):.2f} (target {TARGET})."
    print(words)
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("tensor", title.rstrip("."), f"{caption.strip()}\n\n{words}", HEADER, [_line(row) for row in rows])
    print(f"saved {save('tensor', rows, least_gain=min(wanted), target=TARGET)}")


def _line(row: dict[str, Any]) -> list[object]:
    return [
        row["precision"],
        row["layers"],
        row["batch"],
        f"{1e3 * row['alone_seconds']:.0f}",
        f"{1e3 * row['shared_seconds']:.0f}",
        f"{row['gain']:.2f}",
        row["stages"],
        ", ".join(map(str, sorted(set(row["tensor"])))),
        f"{row['search_seconds']:.0f}",
    ]
