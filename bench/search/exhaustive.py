"""The default planner against brute force on small graphs, with split operators and several stages on a device.

Brute force tries every partition of the operators into stages, every set of devices for each stage, shared or not, and
every micro-batch size that is the same for all stages, in graphs with and without the split. All plans are under 1F1B,
interleaved where devices share. The planner may also mix micro-batch sizes. If its plan is the fastest, the gap is 0.
No plan may be faster than the bound that `gap_percent` is relative to.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import splittable, with_split
from graphpipe.model.zoo import zoo
from graphpipe.planners.lower_bound.lower_bound import step_bound
from graphpipe.planners.problem.partition import Part, Problem, assemble, crossing_bytes, stage_order
from graphpipe.planning.choose_schedule import under
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import step_seconds

GRAPHS = 20
BATCH = 12
MOST_DEVICES = 3
TARGETS = {"worst": 0.03, "mean": 0.005}
CAPTION = (
    "Step times in milliseconds, **simulated** on V100 with random links (nothing was measured). Brute force tries "
    "every partition of the operators into stages, every set of devices for each stage, shared or not, and every "
    "micro-batch size, with and without the split. `gap_percent` is relative to the bound, and no plan is faster."
)
HEADER = ("problem", "devices", "splits", "shares devices", "plan", "best", "bound", "gap, %")

Team = tuple[int, ...]
"""Devices of a stage."""


def main() -> None:
    """Run the benchmark, write JSON, and print the gaps."""
    rows = [_row(seed) for seed in range(GRAPHS)]
    gaps = [row["gap"] for row in rows]
    targets = {"worst_gap": max(gaps), "mean_gap": sum(gaps) / len(gaps), "targets": TARGETS}
    print(targets)
    markdown("exhaustive", "The default planner against brute force", CAPTION, HEADER, [_line(row) for row in rows])
    print(f"saved {save('exhaustive', rows, targets=targets, simulated='analytic V100, random links')}")


def _line(row: dict[str, Any]) -> list[object]:
    steps = [f"{1e3 * row[key]:.4f}" for key in ("seconds", "best_seconds", "bound_seconds")]
    return [row["seed"], row["devices"], row["split"], row["shares_devices"], *steps, f"{100 * row['gap']:.2f}"]


def _row(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    problem = _problem(rng)
    found = gp.plan(problem.graph, problem.costs, problem.cluster, batch_size=BATCH, schedule="1f1b", split="auto")
    assert found.prediction is not None
    seconds = found.prediction.step_seconds
    best = min(_least_seconds(each, seconds) for each in _forms(problem))
    bound = min(step_bound(each) for each in _forms(problem))
    assert bound <= best * (1 + 1e-9), "no plan is faster than the bound"
    row = {
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


def _problem(rng: random.Random) -> Problem:
    """Return two branches that a linear layer joins, 4 operators or 6 with it split, on devices with random links."""
    width = rng.choice([256, 512, 1024, 2048, 4096])
    graph = gp.capture(*zoo("candle-uno", branches=2, layers=1, top_layers=1, width=width))
    devices = MOST_DEVICES if rng.random() < 0.2 else 2
    whole = gp.Cluster.preset("summit:1x4")
    link = replace(whole.intra_node, bandwidth_bytes_per_second=rng.choice([2e9, 1e10, 5e10, 2e11]))
    cluster = replace(whole, devices=whole.devices[:devices], intra_node=link)
    return Problem(graph, gp.estimate(graph, cluster), cluster, BATCH)


def _forms(problem: Problem) -> Iterator[Problem]:
    yield problem
    for split in splittable(problem.graph):
        if split.by == "inputs":
            graph = with_split(problem.graph, split)
            yield replace(problem, graph=graph, costs=gp.estimate(graph, problem.cluster))


def _least_seconds(problem: Problem, known: float) -> float:
    """Return the seconds of the fastest plan, or those that are known if no plan is faster."""
    devices = range(len(problem.cluster.devices))
    teams = [tuple(device for device in devices if chosen >> device & 1) for chosen in range(1, 2 ** len(devices))]
    least = known
    for groups in partitions(problem.graph.order):
        shape = [Part(tuple(ops), 1, 1) for ops in groups]
        order = stage_order(len(shape), crossing_bytes(problem.graph, shape))
        for size in (size for size in range(1, BATCH + 1) if BATCH % size == 0 and order is not None):
            assert order is not None
            ops = [tuple(groups[stage]) for stage in order]
            busy = [[_busy_seconds(problem, each, len(team), size) for team in teams] for each in ops]
            for hosts in _hosts(busy, teams, [0.0] * len(devices), known):
                if _first_of_equals(hosts, len(devices)):
                    parts = [Part(each, len(team), size) for each, team in zip(ops, hosts, strict=True)]
                    plan = assemble(problem, parts, planner="all", devices=hosts)
                    least = min(least, _seconds(plan, least))
    return least


def _busy_seconds(problem: Problem, ops: tuple[str, ...], degree: int, size: int) -> float:
    """Return the seconds per mini-batch in which a stage computes on each of its devices; infinite if it cannot."""
    if size % degree:
        return inf
    task = CostModel.of(problem.graph, problem.costs, problem.cluster).task_seconds(ops, 0, size / degree)
    return BATCH // size * (task.forward + task.backward)


def _hosts(
    busy: Sequence[Sequence[float]], teams: Sequence[Team], load: Sequence[float], limit: float
) -> Iterator[tuple[Team, ...]]:
    """Yield the teams of all stages, where no device computes for as long as the limit.

    Args:
        busy: seconds by stage and team.
        teams: that a stage may have.
        load: seconds of each device for other stages.
        limit: seconds of a step that is not shorter than the known one.
    """
    if not busy:
        yield ()
        return
    for team, seconds in zip(teams, busy[0], strict=True):
        more = [each + seconds * (device in team) for device, each in enumerate(load)]
        if seconds < inf and max(more) < limit:
            yield from ((team, *others) for others in _hosts(busy[1:], teams, more, limit))


def _first_of_equals(hosts: Sequence[Team], devices: int) -> bool:
    """Return whether no other naming of the equal devices gives a smaller sequence of teams."""
    names = permutations(range(devices))
    return all(
        tuple(tuple(sorted(name[device] for device in team)) for team in hosts) >= tuple(hosts) for name in names
    )


def _seconds(plan: Plan, limit: float) -> float:
    if memory_shortfall(plan) > 0 or least_step_seconds(plan, whole_backwards=True) >= limit:
        return inf
    try:
        return step_seconds(under(find_scheduler("interleaved" if plan.shares_devices else "1f1b"), plan))
    except (Infeasible, InvalidInput):
        return inf


def partitions(names: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield every way to group names."""
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [[names[0]], *rest]
        for at in range(len(rest)):
            yield [*rest[:at], [names[0], *rest[at]], *rest[at + 1 :]]
