"""Compare a plan made for a slow link between two hosts with a plan made for a fast one, on the slow link.

Two hosts with two devices each are network namespaces of this machine (`namespaces.py`). `tc tbf` limits their
links in both directions. The model is the digits example with mini-batches of 128, and its operators are profiled
here. The unaware plan is made for links between the hosts that are as fast as those inside. Both plans run on the
limited link, and torchrun starts them on each host. Seconds are the median of the steps after the first. All ranks
share this machine's cores. With fewer than four cores, steps that do not wait for the link take longer than
predicted.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import graphpipe as gp
from bench.record import save

# The tests create hosts with this module too.
from bench.running.hosts.host_runs import DIGITS, TRAIN_EACH, run_of, torchrun, wait
from bench.running.hosts.namespaces import hosts, why_not
from bench.tables import markdown
from graphpipe.profiler.profile import profile
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.task.task import load_task

MEGABITS = (10, 30, 100)
"""Per second."""
BATCH, STEPS, RANKS = 128, 6, 2
CLUSTER = """
cores_per_node = 1
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "100 us", bandwidth = "RATE" }
device_types.cpu = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [{ name = "host", devices = { cpu = 2 }, count = 2 }]
"""


def main() -> None:
    """Run the benchmark, write JSON and a table; fail unless the aware plans differ and are faster."""
    if why := why_not():
        print(f"skipped: hosts cannot be created here: {why}")
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = load_task("digits.py:task", DIGITS.parent, 0)
        graph = gp.capture(task.model, task.example_inputs)
        fast = cluster(folder, "1.5 GB/s")
        sizes = [2**power for power in range(8)]
        costs = profile(task.model, task.example_inputs, fast, graph=graph, batch_sizes=sizes)
        unaware = gp.plan(graph, costs, fast, batch_size=BATCH)
        for megabits in MEGABITS:
            limited = cluster(folder, f"{megabits} Mb/s")
            plans = {"unaware": unaware, "aware": gp.plan(graph, costs, limited, batch_size=BATCH)}
            plans = {name: replace(plan, cluster=limited, prediction=None) for name, plan in plans.items()}
            rows.append({"megabits_per_second": megabits} | compare(plans, folder, megabits))
            print(*(f"{value:.3f}" if isinstance(value, float) else value for value in rows[-1].values()), sep="\t")
    _write(rows)
    assert all(row["aware_stages"] != row["unaware_stages"] and row["times_as_fast"] > 1 for row in rows)


def cluster(folder: Path, rate: str) -> gp.Cluster:
    """Return two hosts whose links have a given rate."""
    path = folder / "cluster.toml"
    path.write_text(CLUSTER.replace("RATE", rate))
    return gp.Cluster.load(path)


def compare(plans: dict[str, gp.Plan], folder: Path, megabits: int) -> dict[str, Any]:
    """Return the stages of every plan, and its predicted and measured seconds on two hosts with limited links."""
    here = folder / str(megabits)
    runs = {name: run_of(plan, here / name, f"train.steps={STEPS}") for name, plan in plans.items()}
    with (
        hosts(2, here, f"{megabits}mbit") as on,
        torchrun(on, here, *TRAIN_EACH, *(run.path for run in runs.values()), ranks=RANKS) as agents,
    ):
        if wait(agents, 600) != [0, 0]:
            raise SystemExit("\n".join((here / f"{host.name}.txt").read_text() for host in on))
    row: dict[str, Any] = {}
    for name, plan in plans.items():
        row[f"{name}_stages"] = {
            f"{stage.ops[0]} .. {stage.ops[-1]}": [plan.cluster.devices[device].name for device in stage.devices]
            for stage in plan.stages
        }
        row[f"{name}_predicted_seconds"] = gp.simulate(plan).step_seconds
        row[f"{name}_measured_seconds"] = median(step.seconds for step in read_metrics_log(runs[name].metrics_log)[1:])
    row["times_as_fast"] = row["unaware_measured_seconds"] / row["aware_measured_seconds"]
    return row


def _write(rows: list[dict[str, Any]]) -> None:
    header = ["Mb/s", "unaware: predicted", "measured", "aware: predicted", "measured", "times as fast"]
    names = [f"{plan}_{what}_seconds" for plan in ("unaware", "aware") for what in ("predicted", "measured")]
    lines = [
        [row["megabits_per_second"], *(f"{row[name]:.3f} s" for name in names), f"{row['times_as_fast']:.1f}"]
        for row in rows
    ]
    markdown("hosts", "Two hosts and a slow link", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    print(f"saved {save('hosts', rows)}")
