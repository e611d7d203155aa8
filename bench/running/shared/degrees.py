"""Steps of two ranks that share a model, as predicted from measured costs of one and of two ranks, and as measured.

**Measured**, on the machine named in the JSON file of the same name. The links between two ranks on gloo and the
operators of a language model like Llama are profiled (`graphpipe profile --tensor 1,2`), with one thread. Then two
ranks train it with AdamW: each of them half of the samples, both the same samples with half of the layers each, and so
with half of the sequence between these layers. These plans take turns in the same processes, one step each. A step is
as long as on its slowest rank, and the error is that of the shortest one. Where other processes use the cores, most
steps are longer.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

import graphpipe as gp
from bench.record import save
from bench.running.alternate import slowest
from bench.running.shared.layers import Shape, batch, loss_fn, model
from bench.tables import markdown
from graphpipe.cluster.measured_link import with_links
from graphpipe.graph import Origin
from graphpipe.launch.launcher import launch
from graphpipe.link_profile.ranks import measure_local_links
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.shards.with_shards import captured_with_shards
from graphpipe.plans import Plan

RANKS, BATCH, MICRO_BATCH = 2, 16, 4
SHAPE = Shape(hidden=512, feed_forward=1024)
KINDS = {"replicas": (1, False), "shared layers": (2, False), "divided sequence": (2, True)}
"""Devices per replica, and whether they divide the sequence."""


def main(*, repeats: int = 20, warmup: int = 3) -> None:
    """Run the benchmark, write JSON and table.

    Args:
        repeats: rounds that count.
        warmup: rounds before these.
    """
    torch.set_num_threads(1)
    plans = degree_plans()
    seconds = _measured(plans, warmup, repeats)
    rows: list[dict[str, Any]] = []
    for name, plan in plans.items():
        assert plan.prediction is not None
        predicted, found = plan.prediction.step_seconds, median(seconds[name])
        row = {"plan": name, "predicted": predicted, "measured": found, "least": min(seconds[name]), "steps": repeats}
        row |= {"predicted_peak": max(plan.prediction.peak_bytes), "link": asdict(plan.cluster.intra_node)}
        print(*_line(row), sep="\t", flush=True)
        rows.append(row)
    title, _, caption = (__doc__ or "").partition("\n\n")
    header = ["plan", "predicted ms", "median ms", "least ms", "error %", "steps"]
    markdown("shared_degrees", title.rstrip("."), caption.strip(), header, [_line(row) for row in rows])
    print(f"saved {save('shared_degrees', rows)}")


def _line(row: dict[str, Any]) -> list[object]:
    shown = [f"{1e3 * row[name]:.1f}" for name in ("predicted", "measured", "least")]
    return [row["plan"], *shown, f"{100 * (row['predicted'] / row['least'] - 1):+.0f}", row["steps"]]


def degree_plans() -> dict[str, Plan]:
    """Return a plan of each kind, by the costs of one and two ranks on this machine."""
    module, (tokens, targets) = model(SHAPE), batch(SHAPE, BATCH)
    origin = Origin(method="auto", opaque=tuple(name for name, _ in module.named_children()))
    captured = captured_with_shards(capture_nodes(module, tokens, origin), module, sequence_parallel=True)
    cluster = with_links(gp.Cluster.preset(f"local:{RANKS}"), measure_local_links(RANKS))
    costs = gp.profile(module, tokens, cluster, captured=captured, loss_fn=loss_fn, targets=targets, tensor=(1, RANKS))
    plans: dict[str, Plan] = {}
    for name, (ranks, sequence) in KINDS.items():
        stage = gp.HandStage(ops=("*",), devices=(0, 1), tensor=ranks, micro_batch=MICRO_BATCH)
        plans[name] = gp.hand_plan(
            captured.graph,
            costs,
            cluster,
            batch_size=BATCH,
            stages=[stage],
            schedule="1f1b",
            sequence_parallel=sequence,
        )
    return plans


def _measured(plans: dict[str, Plan], warmup: int, repeats: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        files = {name: str(job.with_name(f"{name}.json")) for name in plans}
        for name, plan in plans.items():
            plan.save(files[name])
        case = {"plans": files, "shape": asdict(SHAPE), "warmup": warmup, "repeats": repeats}
        job.write_text(json.dumps(case))
        launch(
            "bench.running.shared.degrees_rank:train",
            RANKS,
            arguments=[str(job)],
            environment={"OMP_NUM_THREADS": "1"},
        )
        return slowest([json.loads(Path(f"{job}.{rank}").read_text()) for rank in range(RANKS)])
