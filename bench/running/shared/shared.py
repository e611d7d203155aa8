"""Replicas that two ranks share, in two stages: our runtime against torch's tensor and pipeline parallelism.

**Measured**, on the machine named in the JSON file of the same name. A language model like Llama (grouped queries,
gated feed-forward) is cut in the middle, and two ranks share each half: 4 ranks on gloo, with one thread each. The
other engine is `parallelize_module` and `torch.distributed.pipelining`, put together as torchtitan does, with the same
cut, micro-batches, schedule and layouts: heads, columns and rows, vocabularies. Engines take turns in the same
processes, one step each, with AdamW, and their losses are compared. A step is as long as on its slowest rank. The ratio
is the median of the ratios of consecutive steps. Ours also looks for NaN, and gives the loss to every rank. Where there
are fewer cores than ranks, a step is the work of all ranks on them, more than the waiting for each other.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.running.alternate import slowest, summary
from bench.running.shared.layers import Shape, batch, model
from bench.tables import markdown
from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan

RANKS, BATCH = 4, 16
SHAPES = {"small": Shape(), "wide": Shape(hidden=512, feed_forward=1024)}
CASES = (("small", "1f1b", 2), ("small", "1f1b", 4), ("small", "gpipe", 4), ("wide", "1f1b", 4))
"""Shape, schedule and micro-batch."""
TARGET = 1.03


def main(*, repeats: int = 20, warmup: int = 3) -> None:
    """Run the benchmark, write JSON and table.

    Args:
        repeats: rounds that count.
        warmup: rounds before these.
    """
    rows: list[dict[str, Any]] = []
    for row in _rows(warmup, repeats):
        print(*_line(row), sep="\t", flush=True)
        rows.append(row)
    title, _, caption = (__doc__ or "").partition("\n\n")
    header = ["model", "schedule", "micro-batch", "ours ms", "torch ms", f"ratio (target {TARGET})", "rounds"]
    markdown("shared", title.rstrip("."), caption.strip(), header, [_line(row) for row in rows])
    print(f"saved {save('shared', rows, target=TARGET)}")


def _rows(warmup: int, repeats: int) -> Iterator[dict[str, Any]]:
    for name, schedule, micro_batch in CASES:
        shape = SHAPES[name]
        seconds = _measured(shared_plan(shape, schedule, micro_batch), shape, warmup, repeats)
        row: dict[str, Any] = {"model": name, "schedule": schedule, "micro_batch": micro_batch}
        yield row | {"shape": asdict(shape)} | summary(seconds, "ours", "theirs")


def _line(row: dict[str, Any]) -> list[object]:
    seconds = row["seconds"]
    shown = [f"{1e3 * seconds[name]:.1f}" for name in ("ours", "theirs")]
    return [row["model"], row["schedule"], row["micro_batch"], *shown, f"{row['paired_ratio']:.3f}", row["steps"]]


def shared_plan(shape: Shape, schedule: str, micro_batch: int) -> Plan:
    """Return the plan of two stages, which two ranks share each."""
    module, (tokens, _) = model(shape), batch(shape, BATCH)
    names = [name for name, _ in module.named_children()]
    graph = gp.capture(module, tokens, opaque=names)
    graph, cluster = gp.with_shards(graph, module), gp.Cluster.preset(f"local:{RANKS}")
    half = 1 + shape.layers
    stages = [
        gp.HandStage(
            ops=tuple(op for op in graph.order if (int(op.split(".")[0]) < half) == (at == 0)),
            devices=(2 * at, 2 * at + 1),
            tensor=2,
            micro_batch=micro_batch,
        )
        for at in range(2)
    ]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule=schedule)


def _measured(plan: Plan, shape: Shape, warmup: int, repeats: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        plan.save(job.with_name("plan.json"))
        case = {
            "plan": str(job.with_name("plan.json")),
            "shape": asdict(shape),
            "warmup": warmup,
            "repeats": repeats,
        }
        job.write_text(json.dumps(case))
        launch(
            "bench.running.shared.shared_rank:train",
            RANKS,
            arguments=[str(job)],
            environment={"OMP_NUM_THREADS": "1"},
        )
        return slowest([json.loads(Path(f"{job}.{rank}").read_text()) for rank in range(RANKS)])
