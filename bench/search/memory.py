"""Plans under less and less memory: per operator against whole stages, on models of the zoo and real profiles.

Eight V100 under 1F1B, 8 samples per device. A limit is a share of what the fullest device of the plan with unlimited
memory needs. Profiles are read from ../shared/data/pipedream beside the checkout, and left out without it.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import graphpipe as gp
from bench.case import summit
from bench.record import save
from bench.search.profiles import DATA
from bench.tables import geometric_mean, markdown
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.planners.improve.memory_reliefs import eased
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.planners.search.search import search
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.simulator import step_seconds
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

ZOO = ("mmt", "dlrm", "candle-uno", "case-study", "gpt", "two-tower", "unet", "vision-language")
PROFILES = ("vgg16", "resnet50", "gnmt", "inception_v3")
SHARES = (1.0, 0.6, 0.4, 0.25)
DEVICES, BATCH = 8, 64
BASELINES = ("dawnpiper", "vpipe")
WAYS = ("keep all", "recompute all", "whole stages", "graphpipe", *BASELINES)
CAPTION = (
    "Milliseconds of a step, **simulated** on 8 analytic V100 (`summit:2x4`) under 1F1B with a mini-batch of 64; the "
    "operators of the profiles take the profiles' own times. A dash: no plan fits. `whole stages` recomputes in full "
    "or shards optimizer state, and keeps what fits. `graphpipe` also decides for each operator whether it is kept, "
    "recomputed or offloaded. `dawnpiper` and `vpipe` are the published planners. Where no plan fits, the weights, "
    "gradients and optimizer state of one operator are already larger than the limit (dlrm, candle-uno, vgg16, gnmt), "
    "or those of all operators are larger than eight devices (vision-language)."
)


def _graphs() -> Iterator[tuple[str, gp.Graph]]:
    for name in ZOO:
        if (found := find_zoo_graph(name)) is not None:
            yield name, found.graph
    for name in PROFILES if DATA.exists() else ():
        yield f"{name} (profile)", read_pipedream(DATA / f"{name}.graph.txt")


def _limited(memory_bytes: float) -> gp.Cluster:
    cluster = summit(DEVICES)
    kinds = tuple(replace(kind, memory_bytes=memory_bytes) for kind in cluster.device_types)
    return replace(cluster, device_types=kinds)


def _planned(graph: gp.Graph, cluster: gp.Cluster) -> gp.Plan:
    costs = gp.estimate(graph, cluster)
    return gp.plan(graph, costs, cluster, batch_size=BATCH, schedule="1f1b", stages_per_device=1)


def _by_search(problem: Problem) -> gp.Plan | None:
    try:
        return search(problem, Options(evaluate=step_seconds), planner="graphpipe", chains=(False, True))
    except gp.Infeasible:
        return None


def _by_baseline(name: str, problem: Problem) -> float | None:
    try:
        return step_seconds(PLANNERS[name].plan(problem, Options(evaluate=step_seconds)))
    except gp.Infeasible:
        return None


def _row(name: str, graph: gp.Graph, share: float, need: float) -> dict[str, Any]:
    cluster = _limited(share * need)
    problem = Problem(graph, gp.estimate(graph, cluster), cluster, BATCH)
    again = replace(problem, recompute="full")
    plans = [_by_search(each) for each in (problem, again, replace(again, state="optimizer"))]
    seconds = [None if plan is None else step_seconds(plan) for plan in plans]
    eased_too = [step_seconds(eased(plan)) for plan in plans if plan is not None]
    whole = min([each for each in (*seconds, *eased_too) if each is not None], default=None)
    row: dict[str, Any] = {"model": name, "share": share, "memory_bytes": share * need}
    row |= dict(zip(WAYS, (seconds[0], seconds[1], whole), strict=False))
    start = time.process_time()
    try:
        found = _planned(graph, cluster)
        row |= {"graphpipe": found.prediction.step_seconds if found.prediction else None, "stages": len(found.stages)}
        row["recompute"] = sum(stage.recompute != "none" for stage in found.stages)
        row["offload"] = sum(bool(stage.offload) for stage in found.stages)
    except gp.Infeasible:
        row["graphpipe"] = None
    row["cpu_seconds"] = time.process_time() - start
    return row | {name: _by_baseline(name, problem) for name in BASELINES}


def main() -> None:
    """Run the benchmark, write JSON and table, and print how much faster single operators are."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for name, graph in _graphs():
        need = max(needed_bytes(_planned(graph, _limited(1e15))).values())
        for share in SHARES:
            row = _row(name, graph, share, need)
            rows.append(row)
            lines.append([name, share, *("-" if row[way] is None else f"{row[way] * 1e3:.1f}" for way in WAYS)])
            print(*lines[-1], sep="\t", flush=True)
    both = [row for row in rows if row["graphpipe"] and row["whole stages"]]
    ratios = [row["whole stages"] / row["graphpipe"] for row in both]
    targets = {"least": min(ratios), "mean": geometric_mean(ratios), "most": max(ratios)}
    targets["only_per_operator"] = sum(bool(row["graphpipe"]) and not row["whole stages"] for row in rows)
    markdown("memory", "Less and less memory", CAPTION, ["model", "share", *WAYS], lines)
    print(targets)
    print(f"saved {save('memory', rows, targets=targets)}")
