"""How far the best bottleneck our planner finds is from what no plan can go below, and why where that is over 5 %.

Costs are those of the analytic V100 of the `summit` preset. The bottleneck is the work of the slowest device on a
mini-batch, with its transfers, all-reduce and optimizer step. The search tries every micro-batch size, and the bound
holds for all of them. The bound leaves out plans whose devices run several stages; the bound of the next column
includes them. Where the gap is over 5 %, an integer program repeatedly looks for a partition half-way between the
two. A partition that it finds is a plan that the planner misses. If it proves that none exists, the bound rises.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import graphpipe as gp
from bench.case import summit
from bench.record import save
from bench.search.exact import fastest_plan, partition_within
from bench.tables import markdown
from graphpipe.model.zoo import zoo
from graphpipe.planners.lower_bound.lower_bound import bottleneck_bound, bottleneck_gap_percent
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans.estimates import bottleneck_seconds

MODELS: Mapping[str, int] = MappingProxyType(
    {"mmt": 16, "dlrm": 128, "candle-uno": 128, "case-study": 16, "gpt": 16, "two-tower": 16}
)
"""Samples of a mini-batch per device."""
DEVICES = (4, 8, 16, 32)
TARGET_PERCENT = 5.0
LIMIT_SECONDS = 60.0
_STEPS = 4
_EFFORT = 10.0
HEADER = (
    "model",
    "devices",
    "micro-batch",
    "bottleneck ms",
    "bound ms",
    "gap %",
    "any stages %",
    "bound s",
    "published choice",
    "its gap %",
    "why over 5 %",
)


def _case(graph: gp.Graph, model: str, devices: int) -> dict[str, Any]:
    cluster = summit(devices)
    problem = Problem(graph, gp.estimate(graph, cluster), cluster, MODELS[model] * devices)
    plan, seconds = _best(problem)
    start = time.process_time()
    quick = bottleneck_bound(problem, shared=False)
    took = time.process_time() - start
    bound = max(quick, bottleneck_bound(problem, shared=False, effort=_EFFORT))
    published = PLANNERS["graphpipe"].plan(problem, Options(objective="bottleneck"))
    row: dict[str, Any] = {
        "model": model,
        "devices": devices,
        "batch": problem.batch_size,
        "micro_batch": plan.stages[0].micro_batch,
        "bottleneck_seconds": seconds,
        "bound_seconds": bound,
        "gap_percent": _gap(seconds, bound),
        "quick_gap_percent": _gap(seconds, quick),
        "quick_bound_cpu_seconds": took,
        "any_stages_gap_percent": _gap(seconds, bottleneck_bound(problem)),
        "published_micro_batch": published.stages[0].micro_batch,
        "published_gap_percent": bottleneck_gap_percent(published),
    }
    if row["gap_percent"] > TARGET_PERCENT:
        row |= _reason(problem, plan, bound)
    if row["published_gap_percent"] > TARGET_PERCENT:
        size = published.stages[0].micro_batch
        at_size = bottleneck_bound(problem, sizes=[size], shared=False, effort=_EFFORT)
        row["published"] = _reason(problem, published, at_size, size)
    return row


def _gap(seconds: float, bound: float) -> float:
    return 100.0 * (seconds / bound - 1.0)


def _best(problem: Problem) -> tuple[gp.Plan, float]:
    """Return the plan of the best bottleneck over all micro-batch sizes, and its seconds per mini-batch."""
    plans: list[gp.Plan] = []
    for size in micro_batch_sizes(problem.batch_size):
        try:
            plans.append(PLANNERS["graphpipe"].plan(problem, Options(objective="bottleneck", micro_batch=size)))
        except gp.Infeasible:
            continue
    best = min(plans, key=bottleneck_seconds)
    return best, problem.batch_size * bottleneck_seconds(best)


def _reason(problem: Problem, plan: gp.Plan, bound: float, size: int | None = None) -> dict[str, Any]:
    """Close in on the least bottleneck, of one micro-batch size or all, and say which side was how far off."""
    least, best, undecided = bound, plan, False
    for _ in range(_STEPS):
        seconds = problem.batch_size * bottleneck_seconds(best)
        if _gap(seconds, least) < 1.0:
            break
        # Nearer to a side it is easier to decide.
        for share in (0.5, 0.8, 0.2):
            tried = least + share * (seconds - least)
            answer = partition_within(problem, tried, LIMIT_SECONDS, size)
            drawn = fastest_plan(problem, answer.parts) if answer.exists else None
            if answer.exists is False:
                least = tried
                break
            if drawn is not None and bottleneck_seconds(drawn) < bottleneck_seconds(best):
                best = drawn
                break
        else:
            undecided = True
            break
    seconds = problem.batch_size * bottleneck_seconds(best)
    return {
        "reason": _sentence(plan, best, bound, least, undecided=undecided),
        "least_found_seconds": seconds,
        "raised_bound_seconds": least,
        "remaining_gap_percent": _gap(seconds, least),
    }


def _sentence(plan: gp.Plan, best: gp.Plan, bound: float, least: float, *, undecided: bool) -> str:
    batch = plan.batch_size
    found, seconds = batch * bottleneck_seconds(plan), batch * bottleneck_seconds(best)
    said: list[str] = []
    if best is not plan:
        said.append(f"the planner misses {1e3 * seconds:.1f} ms, {100 * (1 - seconds / found):.1f} % less")
        if _without_update(plan) <= _without_update(best):
            said[-1] += " (its own would be no worse if the optimizer's step took no time)"
    if least > bound:
        said.append(f"the bound is {_gap(least, bound):.1f} % loose: none is below {1e3 * least:.1f} ms")
    if undecided:
        said.append(f"undecided between {1e3 * least:.1f} and {1e3 * seconds:.1f} ms")
    return "; ".join(said)


def _without_update(plan: gp.Plan) -> float:
    return bottleneck_seconds(replace(plan, costs=replace(plan.costs, optimizer_seconds_per_parameter_byte=0.0)))


def _why(row: dict[str, Any]) -> str:
    own = row.get("reason", "")
    chosen = row.get("published", {}).get("reason", "")
    return own + (f". At the published choice: {chosen}" if own and chosen else chosen)


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for model in MODELS:
        graph = gp.capture(*zoo(model))
        for devices in DEVICES:
            row = _case(graph, model, devices)
            rows.append(row)
            lines.append(
                [
                    model,
                    devices,
                    row["micro_batch"],
                    f"{1e3 * row['bottleneck_seconds']:.1f}",
                    f"{1e3 * row['bound_seconds']:.1f}",
                    f"{row['gap_percent']:.1f}",
                    f"{row['any_stages_gap_percent']:.1f}",
                    f"{row['quick_bound_cpu_seconds']:.2f}",
                    row["published_micro_batch"],
                    f"{row['published_gap_percent']:.1f}",
                    _why(row),
                ]
            )
            print(*lines[-1], sep="\t", flush=True)
    notes = """

Columns: the micro-batch of the best bottleneck; its milliseconds per mini-batch and the bound's; the gap, and the gap
to a bound that also allows several stages on a device; processor seconds of the bound as `plan --json` computes it (the
gap here is of one that may take ten times as long); the micro-batch that `--objective bottleneck` chooses by step time,
and its gap among plans of that size."""
    caption = (__doc__ or "").partition("\n\n")[2].strip() + notes
    markdown("bounds", "The best bottleneck against its lower bound", caption, HEADER, lines)
    print(f"saved {save('bounds', rows, limit_seconds=LIMIT_SECONDS)}")
