"""A plan that knows of a slow link between two hosts against one that does not, on that link.

Two hosts with two devices each are network namespaces of this machine (see tests/run/run_hosts.py), their links limited
in both directions by `tc tbf`. The digits example, mini-batches of 128, costs measured here. The unaware plan is made
for links between the hosts as fast as those inside; both run on the limited link, started by torchrun on each host.
Seconds are the median of the steps after the first.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.model.profile import profile
from graphpipe.run.task import load_task
from tests.run.run_hosts import DIGITS, hosts, training, wait, why_not

MEGABITS = (10, 30, 100)
"""Per second: with more, these plans and this machine's two cores make no difference to see."""
BATCH, STEPS, RANKS = 128, 6, 2
CLUSTER = """
cores_per_node = 1
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "100 us", bandwidth = "RATE" }
device_types.cpu = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [{ name = "host", devices = { cpu = 2 }, count = 2 }]
"""


def cluster(folder: Path, rate: str) -> gp.Cluster:
    """Return two hosts with links of a rate."""
    path = folder / "cluster.toml"
    path.write_text(CLUSTER.replace("RATE", rate))
    return gp.Cluster.load(path)


def step_seconds(plan: gp.Plan, folder: Path, megabits: int) -> float:
    """Train by a plan on two hosts whose links are limited, and return the median time of a step."""
    folder.mkdir()
    plan.save(folder / "plan.json")
    arguments = ["--plan", folder / "plan.json", f"train.steps={STEPS}"]
    with hosts(2, folder, f"{megabits}mbit") as on, training(on, folder, *arguments, ranks=RANKS) as agents:
        if wait(agents, 300) != [0, 0]:
            raise SystemExit("\n".join((folder / f"{host.name}.txt").read_text() for host in on))
    log = folder / "runs" / "digits-1" / "metrics.jsonl"
    return median(json.loads(line)["seconds"] for line in log.read_text().splitlines()[1:])


def _rows(folder: Path) -> list[dict[str, Any]]:
    task = load_task("digits.py:task", DIGITS.parent, 0)
    fast = cluster(folder, "1.5 GB/s")
    graph = gp.capture(task.module, task.example_inputs)
    costs = profile(task.module, task.example_inputs, fast, graph=graph, batch_sizes=[2**power for power in range(8)])
    unaware = gp.plan(graph, costs, fast, batch_size=BATCH)
    rows: list[dict[str, Any]] = []
    for megabits in MEGABITS:
        limited = cluster(folder, f"{megabits} Mb/s")
        plans = {"aware": gp.plan(graph, costs, limited, batch_size=BATCH), "unaware": unaware}
        row: dict[str, Any] = {"megabits_per_second": megabits}
        for name, plan in plans.items():
            found = replace(plan, cluster=limited, prediction=None)
            row[f"{name}_stages"] = {
                f"{stage.ops[0]} .. {stage.ops[-1]}": [limited.devices[device].name for device in stage.devices]
                for stage in plan.stages
            }
            row[f"{name}_predicted_seconds"] = gp.simulate(found).step_seconds
            row[f"{name}_measured_seconds"] = step_seconds(found, folder / f"{name}-{megabits}", megabits)
        row["times_as_fast"] = row["unaware_measured_seconds"] / row["aware_measured_seconds"]
        rows.append(row)
        print(*(f"{value:.3f}" if isinstance(value, float) else value for value in row.values()), sep="\t")
    return rows


def main() -> None:
    """Run the benchmark, write JSON and a table."""
    if why := why_not():
        raise SystemExit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(Path(folder))
    header = ["Mb/s", "aware: predicted", "measured", "unaware: predicted", "measured", "times as fast"]
    names = [f"{plan}_{what}_seconds" for plan in ("aware", "unaware") for what in ("predicted", "measured")]
    lines = [
        [row["megabits_per_second"], *(f"{row[name]:.3f} s" for name in names), f"{row['times_as_fast']:.2f}"]
        for row in rows
    ]
    markdown("hosts", "Two hosts and a slow link", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    print(f"saved {save('hosts', rows)}")


if __name__ == "__main__":
    main()
