"""Inference on four hosts with slow links, one of them at a third of the speed.

The hosts are network namespaces of this machine (`hosts/namespaces.py`), and `tc tbf` limits their links in both
directions. Layers sleep for a known time (`emulated_layers.py`), messages are real, and `torchrun` starts
`graphpipe infer` on each host. The other placement gives every host layers in proportion to its memory, which is the
same on all. The measured rate is that of 800 samples, with the time in which the pipeline fills and drains.
"""

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.running.hosts.host_runs import torchrun, wait
from bench.running.hosts.namespaces import hosts, why_not
from bench.running.requests.emulated_layers import LAYERS, SECONDS, SLOWER, model
from bench.tables import markdown
from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.plans.estimates import period_seconds

MEGABITS, HOSTS, BATCH, MICRO = (10, 100), 4, 32, 4
ACCURACY, GAIN = 0.10, 2.0
"""Targets: the difference from the prediction, and the rate over that of layers in proportion to memory."""
HERE = Path(__file__).parent / "emulated_layers.py"
CLUSTER = """
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "300 us", bandwidth = "RATE Mb/s" }
device_types.fast = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
device_types.slow = { memory = "4 GB", peak = "7 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [
  { name = "fast", devices = { fast = 1 }, count = 3 },
  { name = "slow", devices = { slow = 1 }, count = 1 },
]
"""


def main() -> None:
    """Run the benchmark, write JSON and a table; fail if a target is missed."""
    if why := why_not():
        print(f"skipped: hosts cannot be created here: {why}")
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for megabits in MEGABITS:
            for kind, plan in plans(Path(name), megabits).items():
                rows.append({"megabits_per_second": megabits, "placement": kind} | measured(plan, Path(name), megabits))
                print(rows[-1], flush=True)
    _write(rows)
    best = [row for row in rows if row["placement"] == "graphpipe"]
    assert all(abs(row["difference"]) <= ACCURACY for row in rows)
    assert all(row["gain"] >= GAIN for row in best)


def plans(folder: Path, megabits: int) -> dict[str, gp.Plan]:
    """Return the plan for these links, and the one in proportion to memory."""
    path = folder / "cluster.toml"
    path.write_text(CLUSTER.replace("RATE", str(megabits)))
    cluster = gp.Cluster.load(path)
    graph = capture_nodes(*model()).graph
    assert len(graph.ops) == LAYERS
    seconds = {"fast": SECONDS, "slow": SECONDS * SLOWER}
    rows = tuple(
        OpCost(
            op=op.name,
            device_type=kind,
            forward=Curve(lines=((0.0, each),)),
            input_gradient=Curve(),
            weight_gradient=Curve(),
            source="imported",
        )
        for kind, each in seconds.items()
        for op in graph.ops
    )
    costs = CostTable(graph_fingerprint=graph.fingerprint, rows=rows)
    cuts = [round(LAYERS * number / HOSTS) for number in range(HOSTS + 1)]
    stages = [
        gp.HandStage(ops=graph.order[first:stop], devices=(number,), micro_batch=MICRO)
        for number, (first, stop) in enumerate(pairwise(cuts))
    ]
    return {
        "in proportion to memory": gp.hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, inference=True),
        "graphpipe": gp.plan(graph, costs, cluster, batch_size=BATCH, micro_batch=MICRO, inference=True),
    }


def measured(plan: gp.Plan, folder: Path, megabits: int) -> dict[str, Any]:
    """Return the stages of a plan, and its predicted and measured samples per second."""
    here = Path(tempfile.mkdtemp(dir=folder))
    plan.save(here / "plan.json")
    words = ["infer", here / "plan.json", "--model", f"{HERE}:model", "--data", f"{HERE}:requests", "--json"]
    with (
        hosts(HOSTS, here, f"{megabits}mbit") as on,
        torchrun(on, here, "graphpipe", *words, "-o", here / "answers.npz") as agents,
    ):
        if any(wait(agents, 300)):
            raise SystemExit("\n".join((here / f"{host.name}.txt").read_text() for host in on))
    result = _result(here)
    predicted = plan.batch_size / period_seconds(plan)
    return {
        "layers": [[plan.cluster.devices[stage.devices[0]].name, len(stage.ops)] for stage in plan.stages],
        "predicted": predicted,
        "measured": result["samples_per_second"],
        "difference": result["samples_per_second"] / predicted - 1,
    }


def _result(folder: Path) -> dict[str, Any]:
    lines = [line for path in folder.glob("host*.txt") for line in path.read_text().splitlines()]
    (found,) = [json.loads(line) for line in lines if line.startswith("{")]
    return found


def _write(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        same = [each for each in rows if each["megabits_per_second"] == row["megabits_per_second"]]
        row["gain"] = row["measured"] / same[0]["measured"]
    header = ["Mb/s", "placement", "layers by host", "predicted, samples/s", "measured", "difference", "gain"]
    lines = [
        [
            row["megabits_per_second"],
            row["placement"],
            ", ".join(f"{name.partition('/')[0]} {count}" for name, count in row["layers"]),
            f"{row['predicted']:.1f}",
            f"{row['measured']:.1f}",
            f"{row['difference']:+.1%}",
            f"{row['gain']:.2f}",
        ]
        for row in rows
    ]
    markdown("inference", "Inference on unequal hosts", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    print(f"saved {save('inference', rows)}")
