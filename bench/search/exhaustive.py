"""The default planner against brute force on small graphs.

Brute force tries every partition of the operators into stages, every set of devices for each stage, and every
micro-batch size that is the same for all stages. All plans are under 1F1B. There are 60 graphs of three kinds:

    equal devices    models of two branches, with split operators, and with several stages on a device (interleaved)
    mixed speeds     random graphs on devices of up to three speeds
    slow sites       random graphs on two sites, 0.1 to 10 Gb/s between them

Random graphs on two devices may share them too. On three and four, each device hosts one stage. The planner may also
mix micro-batch sizes. If its plan is the fastest, the gap is 0. No plan may be faster than the bound that `gap_percent`
is relative to.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.search.brute_force import least_seconds
from bench.search.clusters.drawn_case import link, random_graph, slower
from bench.tables import markdown
from graphpipe.cluster import Cluster, Device, DeviceType
from graphpipe.graph import splittable, with_split
from graphpipe.model.zoo import zoo
from graphpipe.planners.lower_bound.lower_bound import step_bound
from graphpipe.planners.problem.partition import Problem

KINDS = ("equal devices", "mixed speeds", "slow sites")
GRAPHS_OF_A_KIND = 20
BATCH = 12
TARGETS = {"worst": 0.03, "mean": 0.005}
CAPTION = (
    "Step times in milliseconds, **simulated** on V100, parts of a V100's speed, and random links (nothing was "
    "measured). Brute force tries every partition of the operators into stages, every set of devices for each stage "
    "(shared or not on two devices, and on equal ones), and every micro-batch size, of equal devices with and without "
    "the split. `gap_percent` is relative to the bound, and no plan is faster."
)
HEADER = ("kind", "problem", "devices", "splits", "shares devices", "plan", "best", "bound", "gap, %")


def main() -> None:
    """Run the benchmark, write JSON, and print the gaps of each kind."""
    rows = [_row(kind, seed) for kind in KINDS for seed in range(GRAPHS_OF_A_KIND)]
    gaps = {kind: _gaps([row for row in rows if row["kind"] == kind]) for kind in KINDS} | {"all": _gaps(rows)}
    print({"gaps": gaps, "targets": TARGETS})
    markdown("exhaustive", "The default planner against brute force", CAPTION, HEADER, [_line(row) for row in rows])
    print(f"saved {save('exhaustive', rows, gaps=gaps, targets=TARGETS, simulated='analytic V100, random links')}")


def _gaps(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    gaps = [row["gap"] for row in rows]
    return {"worst": max(gaps), "mean": sum(gaps) / len(gaps)}


def _line(row: dict[str, Any]) -> list[object]:
    steps = [f"{1e3 * row[key]:.4f}" for key in ("seconds", "best_seconds", "bound_seconds")]
    plan = [row["devices"], row["split"], row["shares_devices"]]
    return [row["kind"], row["seed"], *plan, *steps, f"{100 * row['gap']:.2f}"]


def _row(kind: str, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    problem = _branches(rng) if kind == KINDS[0] else random_problem(kind, rng)
    shared = kind == KINDS[0] or len(problem.cluster.devices) == 2
    forms = list(_forms(problem))
    settings: dict[str, Any] = {"split": "auto", "schedule": "1f1b", "stages_per_device": None if shared else 1}
    found = gp.plan(problem.graph, problem.costs, problem.cluster, batch_size=BATCH, **settings)
    assert found.prediction is not None
    seconds = found.prediction.step_seconds
    best = min(least_seconds(each, seconds, shared=shared) for each in forms)
    bound = min(step_bound(each) for each in forms)
    assert bound <= best * (1 + 1e-9), "no plan is faster than the bound"
    row = {
        "kind": kind,
        "seed": seed,
        "ops": len(problem.graph.ops),
        "devices": len(problem.cluster.devices),
        "split": len(found.graph.ops) > len(problem.graph.ops),
        "shares_devices": found.shares_devices,
        "seconds": seconds,
        "best_seconds": best,
        "bound_seconds": bound,
        "gap": seconds / best - 1,
    }
    print(row, file=sys.stderr, flush=True)
    return row


def _branches(rng: random.Random) -> Problem:
    """Return two branches that a linear layer joins, 4 operators or 6 with it split, on devices with random links."""
    width = rng.choice([256, 512, 1024, 2048, 4096])
    graph = gp.capture(*zoo("candle-uno", branches=2, layers=1, top_layers=1, width=width))
    devices = 3 if rng.random() < 0.2 else 2
    whole = Cluster.preset("summit:1x4")
    link = replace(whole.intra_node, bandwidth_bytes_per_second=rng.choice([2e9, 1e10, 5e10, 2e11]))
    cluster = replace(whole, devices=whole.devices[:devices], intra_node=link)
    return Problem(graph, gp.estimate(graph, cluster), cluster, BATCH)


def random_problem(kind: str, rng: random.Random) -> Problem:
    """Return a random graph of 4 or 5 operators on 2 to 4 devices of mixed speeds, or of two sites."""
    graph, count = random_graph(rng.choice([4, 5]), rng), rng.choice([2, 3, 4])
    speeds = [rng.choice([0.25, 0.5, 0.8, 1.0]) for _ in range(count)] if kind == "mixed speeds" else [1.0] * count
    first = rng.randint(1, count - 1) if kind == "slow sites" else count
    cluster = Cluster(
        name=kind,
        device_types=tuple(_type(speed) for speed in dict.fromkeys(speeds)),
        devices=tuple(
            Device(name=f"d{at}", type=_type(speed).name, node="n0" if at < first else "n1")
            for at, speed in enumerate(speeds)
        ),
        intra_node=link(rng.choice([2e9, 1e10, 4.3e10]), 8e-6),
        inter_node=link(rng.choice([1.25e7, 1.25e8, 1.25e9]), 50e-6),
    )
    return Problem(graph, gp.estimate(graph, cluster), cluster, BATCH)


def _type(speed: float) -> DeviceType:
    fastest = Cluster.preset("summit:1x1").device_types[0]
    return slower(fastest, f"{speed:g} of a V100", speed, fastest.memory_bytes)


def _forms(problem: Problem) -> Iterator[Problem]:
    yield problem
    for split in splittable(problem.graph):
        if split.by == "inputs":
            graph = with_split(problem.graph, split)
            yield replace(problem, graph=graph, costs=gp.estimate(graph, problem.cluster))
