"""Tensor parallelism: language models of 32 and 64 layers on 64 A100, with one device per replica and with several.

Simulated, on the `dgx-a100` preset's analytic model. Layers are those of GPT with a width of 4096 and texts of 2048
tokens, in bf16 with weights in fp32. Their figures follow from formulas (Korthikanti et al., 2022), with fused
attention.
"""

import itertools
import time
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.graph import Edge, Graph, Op, Origin, Work
from graphpipe.graph.op_shards import OpShards, SubmoduleShards

WIDTH, HEADS, TOKENS, WORDS = 4096, 32, 2048, 50304
CASES = ((32, 64), (32, 128), (64, 64), (64, 128), (32, 32))
"""Layers, and samples of a mini-batch."""
CLUSTER = "dgx-a100:8x8"
TARGET = 1.15
"""Least gain at one or two samples per device."""
HEADER = ("layers", "batch", "tensor 1, ms", "auto, ms", "gain", "stages", "devices per replica", "search s")


def language_model(layers: int) -> Graph:
    """Return the graph of a language model: an embedding, layers of attention and MLP, and a head."""
    names = ["embedding", *(f"layers.{at}" for at in range(layers)), "head"]
    made = {"embedding": _embedding, "head": _head}
    sent = 2.0 * TOKENS * WIDTH
    return Graph(
        name=f"gpt-{layers}",
        ops=tuple(made.get(name, _layer)(name) for name in names),
        edges=tuple(Edge(source=one, target=other, bytes_per_sample=sent) for one, other in itertools.pairwise(names)),
        origin=Origin(method="declared", precision="bf16"),
    )


def _layer(name: str) -> Op:
    # Products: qkv, output, and two of the MLP. Norms, dropouts and residuals are whole on every rank: 10 of the 34
    # bytes per value that a layer saves.
    values, parameters = float(TOKENS * WIDTH), 12.0 * WIDTH**2
    work = Work(
        flops_per_sample=2 * parameters * TOKENS + 4.0 * TOKENS**2 * WIDTH,
        traffic_bytes_per_sample=72 * values,
        saved_bytes_per_sample=34 * values,
        saved_bytes_per_forward=2 * parameters,
        kernels=24,
    )
    return Op(
        name=name,
        parameters=(f"{name}.weight",),
        parameter_bytes=4 * parameters,
        output_bytes_per_sample=2 * values,
        work=work,
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="heads"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=work.flops_per_sample,
            traffic_bytes_per_sample=40 * values,
            saved_bytes_per_sample=24 * values,
            forward_reductions=2,
            forward_bytes_per_sample=2 * 2 * values,
            backward_reductions=2,
            backward_bytes_per_sample=2 * 2 * values,
        ),
    )


def _embedding(name: str) -> Op:
    values, parameters = float(TOKENS * WIDTH), float(WORDS * WIDTH)
    return Op(
        name=name,
        parameters=(f"{name}.weight",),
        parameter_bytes=4 * parameters,
        output_bytes_per_sample=2 * values,
        work=Work(traffic_bytes_per_sample=6 * values, saved_bytes_per_sample=8.0 * TOKENS, kernels=2),
        model_inputs=("text",),
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="vocabulary-rows"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=0.0,
            forward_bytes_per_sample=2 * values,
            backward_reductions=0,
        ),
    )


def _head(name: str) -> Op:
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
            traffic_bytes_per_sample=2 * values + 2 * logits,
            saved_bytes_per_sample=2 * values + 4 * logits,
            saved_bytes_per_forward=2 * parameters,
            kernels=4,
        ),
        shards=OpShards(
            most=HEADS,
            submodules=(SubmoduleShards(submodule=name, style="vocabulary-columns"),),
            parameters=((f"{name}.weight", 0),),
            parameter_bytes=4 * parameters,
            flops_per_sample=flops,
            traffic_bytes_per_sample=2 * logits,
            forward_bytes_per_sample=logits,
            backward_reductions=1,
            backward_bytes_per_sample=2 * values,
        ),
    )


def case_row(layers: int, batch: int) -> dict[str, Any]:
    """Return the steps with one device per replica, and with as many as the planner chooses."""
    graph, cluster = language_model(layers), gp.Cluster.preset(CLUSTER)
    costs = gp.estimate(graph, cluster)
    alone = gp.plan(graph, costs, cluster, batch_size=batch, stages_per_device=1)
    start = time.perf_counter()
    shared = gp.plan(graph, costs, cluster, batch_size=batch, stages_per_device=1, tensor="auto")
    assert alone.prediction is not None
    assert shared.prediction is not None
    return {
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
    for case in CASES:
        rows.append(case_row(*case))
        print(*_line(rows[-1]), sep="\t", flush=True)
    wanted = [row["gain"] for row in rows if row["batch"] >= 64]
    words = f"Least gain at one or two samples per device: {min(wanted):.2f} (target {TARGET})."
    print(words)
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("tensor", title.rstrip("."), f"{caption.strip()}\n\n{words}", HEADER, [_line(row) for row in rows])
    print(f"saved {save('tensor', rows, least_gain=min(wanted), target=TARGET)}")


def _line(row: dict[str, Any]) -> list[object]:
    return [
        row["layers"],
        row["batch"],
        f"{1e3 * row['alone_seconds']:.0f}",
        f"{1e3 * row['shared_seconds']:.0f}",
        f"{row['gain']:.2f}",
        row["stages"],
        ", ".join(map(str, sorted(set(row["tensor"])))),
        f"{row['search_seconds']:.0f}",
    ]
