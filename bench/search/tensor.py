"""Tensor parallelism: language models of 32 and 64 layers on 64 A100, with one device per replica and with several.

**Simulated** on the analytic model of the `dgx-a100` preset (nothing was measured). Layers are those of GPT with a
width of 4096 and texts of 2048 tokens, in fp32, or in bf16 with weights in fp32. Their figures follow from formulas
(Korthikanti et al., 2022), with fused attention. In bf16 a layer takes a sixteenth of the time, so that sums and small
products weigh more.
"""

import time
from itertools import pairwise, product
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.tables import geometric_mean, markdown
from graphpipe.graph import Edge, Graph, Op, Origin, Work
from graphpipe.graph.op_shards import OpShards, SubmoduleShards
from graphpipe.graph.operator import Precision

WIDTH, HEADS, TOKENS, WORDS = 4096, 32, 2048, 50304
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CASES = ((32, 32), (32, 64), (32, 128), (64, 64), (64, 128))
"""Layers, and samples of a mini-batch."""
CLUSTER = "dgx-a100:8x8"
TARGET = 1.15
"""Least gain at one sample per device."""
HEADER = ("precision", "layers", "batch", "1, ms", "auto, ms", "gain", "stages", "devices per replica", "search s")


def language_model(layers: int, precision: Precision) -> Graph:
    """Return the graph of a language model: an embedding, layers of attention and MLP, and a head."""
    width = 2.0 if precision == "bf16" else 4.0
    names = ["embedding", *(f"layers.{at}" for at in range(layers)), "head"]
    made = {"embedding": _embedding, "head": _head}
    sent = width * TOKENS * WIDTH
    return Graph(
        name=f"gpt-{layers}",
        ops=tuple(made.get(name, _layer)(name, width) for name in names),
        edges=tuple(Edge(source=one, target=other, bytes_per_sample=sent) for one, other in pairwise(names)),
        origin=Origin(method="declared", precision=precision),
    )


def _layer(name: str, width: float) -> Op:
    # Products: qkv, output, and two of the MLP. Norms, dropouts and residuals are whole on every rank: 10 of the 34
    # bytes per value of two bytes that a layer saves.
    values, parameters = float(TOKENS * WIDTH), 12.0 * WIDTH**2
    work = Work(
        flops_per_sample=2 * parameters * TOKENS + 4.0 * TOKENS**2 * WIDTH,
        traffic_bytes_per_sample=36 * width * values,
        saved_bytes_per_sample=17 * width * values,
        saved_bytes_per_forward=2 * parameters if width == 2 else 0.0,
        kernels=12,
    )
    return Op(
        name=name,
        parameters=(f"{name}.weight",),
        parameter_bytes=4 * parameters,
        output_bytes_per_sample=width * values,
        work=work,
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="heads"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=work.flops_per_sample,
            traffic_bytes_per_sample=20 * width * values,
            saved_bytes_per_sample=12 * width * values,
            forward_reductions=2,
            forward_bytes_per_sample=2 * width * values,
            backward_reductions=2,
            backward_bytes_per_sample=2 * width * values,
        ),
    )


def _embedding(name: str, width: float) -> Op:
    values, parameters = float(TOKENS * WIDTH), float(WORDS * WIDTH)
    return Op(
        name=name,
        parameters=(f"{name}.weight",),
        parameter_bytes=4 * parameters,
        output_bytes_per_sample=width * values,
        work=Work(traffic_bytes_per_sample=3 * width * values, saved_bytes_per_sample=8.0 * TOKENS, kernels=2),
        model_inputs=("text",),
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="vocabulary-rows"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=0.0,
            forward_bytes_per_sample=width * values,
            backward_reductions=0,
        ),
    )


def _head(name: str, width: float) -> Op:
    # The logits are gathered, which costs half of a sum. The loss of them is whole on every rank.
    values, parameters, logits = float(TOKENS * WIDTH), float(WORDS * WIDTH), float(TOKENS * WORDS)
    flops = 2 * parameters * TOKENS
    return Op(
        name=name,
        parameters=(f"{name}.weight",),
        parameter_bytes=4 * parameters,
        output_bytes_per_sample=4 * logits,
        work=Work(
            flops_per_sample=flops,
            traffic_bytes_per_sample=width * (values + logits),
            saved_bytes_per_sample=width * values + 4 * logits,
            saved_bytes_per_forward=2 * parameters if width == 2 else 0.0,
            kernels=4,
        ),
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="vocabulary-columns"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=flops,
            traffic_bytes_per_sample=width * logits,
            forward_bytes_per_sample=width / 2 * logits,
            backward_reductions=1,
            backward_bytes_per_sample=width * values,
        ),
    )


def case_row(precision: Precision, layers: int, batch: int) -> dict[str, Any]:
    """Return the steps with one device per replica, and with as many as the planner chooses."""
    graph, cluster = language_model(layers, precision), gp.Cluster.preset(CLUSTER)
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
