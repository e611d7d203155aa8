"""The default planner on random clusters: never slower than on a part of the cluster, 1F1B or a baseline?

    python -m bench clusters [--count 200] [--again]

Each case is appended to `bench/results/clusters.jsonl`, and a second call goes on where the first ended.

Clusters of 3 to 64 devices: equal ones, slow sites (10, 1 and 0.1 Gb/s), two or three types of devices, and unequal
memory. Graphs of the zoo, published profiles (absent without ../shared/data beside the checkout), and random ones.
Steps are simulated. Each plan is compared with the default planner's own plan for each node, site and type of device,
with its own plan under 1F1B, with every baseline under 1F1B that ends in 5 seconds, and with a local search from random
plans that has ten times the processor time, 10 seconds at most.
"""

import time
from collections.abc import Sequence
from typing import Any

import graphpipe as gp
from bench.case import limited
from bench.record import append_row, read_rows, save
from bench.search.clusters.drawn_case import KINDS, DrawnCase, draw_case
from bench.search.clusters.restarts import restarts
from bench.tables import geometric_mean, markdown
from graphpipe.planners.registry import planner_names
from graphpipe.planning.problem import make_problem

NAME = "clusters"
BASELINES = tuple(name for name in planner_names(trains=True) if name != "graphpipe")
_TIMES, _MOST_SECONDS, _BASELINE_SECONDS = 10, 10.0, 5.0
_TOLERANCE = 1e-9


def step(case: DrawnCase, cluster: gp.Cluster, **options: Any) -> float | None:
    """Return the seconds of a step of a plan for these devices; None if nothing fits."""
    costs = gp.estimate(case.graph, cluster)
    try:
        plan = gp.plan(case.graph, costs, cluster, batch_size=case.batch_size, **options)
    except gp.Infeasible:
        return None
    assert plan.prediction is not None
    return plan.prediction.step_seconds


def case_row(case: DrawnCase) -> dict[str, Any]:
    """Return the steps of all plans of one case, by what they are."""
    start = time.process_time()
    auto = step(case, case.cluster)
    seconds = time.process_time() - start
    own = step(case, case.cluster, schedule="1f1b")
    found = {f"part: {name}": step(case, part) for name, part in case.parts.items()}
    for name in BASELINES:
        found[f"baseline: {name}"] = limited(
            _BASELINE_SECONDS, lambda name=name: step(case, case.cluster, planner=name, schedule="1f1b")
        )
    problem = make_problem(case.graph, gp.estimate(case.graph, case.cluster), case.cluster, case.batch_size, None)
    found["search from random plans"] = restarts(problem, min(_MOST_SECONDS, _TIMES * seconds), case.seed)
    return {
        "seed": case.seed,
        "kind": case.kind,
        "model": case.model,
        "ops": len(case.graph.ops),
        "cluster": case.cluster.name,
        "devices": len(case.cluster.devices),
        "batch": case.batch_size,
        "search_seconds": round(seconds, 3),
        "auto": auto,
        "1f1b": own,
        "others": found,
    }


def losses(row: dict[str, Any]) -> dict[str, float]:
    """Return by how much of its time a plan is slower than another, for each other that is faster."""
    against = {name: (seconds, row["auto"]) for name, seconds in row["others"].items() if name.startswith("part")}
    against |= {name: (seconds, row["1f1b"]) for name, seconds in row["others"].items() if name not in against}
    against["1f1b"] = (row["1f1b"], row["auto"])
    if (own := row["others"].get("baseline: gpipe")) is not None:
        against["baseline: gpipe"] = (own, row["auto"])  # It keeps its own schedule.
    return {
        name: (own / other - 1.0 if own else float("inf"))
        for name, (other, own) in against.items()
        if other is not None and other < (own or float("inf")) * (1 - _TOLERANCE)
    }


def main(*, count: int = 200, again: bool = False) -> None:
    """Compute the cases that are missing, and write the table.

    Args:
        count: of cases.
        again: compute again what is there.
    """
    known = set[int]() if again else {row["seed"] for row in read_rows(NAME)}
    for seed in (seed for seed in range(count) if seed not in known):
        if (case := draw_case(seed)) is None:
            continue
        row = case_row(case)
        append_row(NAME, row)
        shown = ", ".join(f"{name} {loss:.2%}" for name, loss in losses(row).items())
        print(seed, row["model"], row["cluster"], f"{row['search_seconds']:.2f} s", shown or "-", sep="\t", flush=True)
    summarise(read_rows(NAME))


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Write the table and the JSON of its totals. A case that was computed again replaces the one before."""
    last = {row["seed"]: row for row in rows}
    lines: list[list[object]] = []
    slower: list[dict[str, Any]] = []
    for kind in KINDS:
        cases = [row for row in last.values() if row["kind"] == kind]
        line: list[object] = [kind, len(cases)]
        for what in ("part", "1f1b", "baseline", "search"):
            lost = [
                max((loss for name, loss in losses(row).items() if name.startswith(what)), default=0.0) for row in cases
            ]
            line.append(f"{sum(loss > 0 for loss in lost)} ({max(lost, default=0.0):.1%})")
        gains = [1.0 + losses(row).get("search from random plans", 0.0) for row in cases]
        line.append(f"{geometric_mean(gains) - 1:.2%}" if gains else "-")
        lines.append(line)
        slower += [{**row, "losses": losses(row)} for row in cases if losses(row)]
    caption = (__doc__ or "").rpartition("\n\n")[2].strip()
    caption += "\n\nCells: cases in which a plan is slower than the best of these others (and by how much at worst)."
    header = ["clusters", "cases", "parts", "1F1B", "baselines", "local search", "it gains in the mean"]
    markdown(NAME, "Random clusters", caption, header, lines)
    print(*lines, sep="\n")
    print(f"saved {save(NAME, slower)}")
