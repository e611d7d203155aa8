"""The public functions that join rooms: estimate, plan, simulate."""

import gc
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph
from graphpipe.planners.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planners.choose_schedule import AUTO, best_scheduled, check_choice, scheduled
from graphpipe.planners.problem.options import Objective, Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import planner as planner_named
from graphpipe.planners.zero_bubble import SPLIT
from graphpipe.plans.plan import Plan
from graphpipe.plans.verify import verify
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate

if TYPE_CHECKING:
    from graphpipe.model.capture.capture import Captured

_OBJECTIVES = ("step", "bottleneck")

__all__ = ["choose_backwards", "estimate", "hand_plan", "plan", "simulate"]


def plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    *,
    batch_size: int,
    planner: str = "graphpipe",
    micro_batch: int | None = None,
    mixed_micro_batches: bool = False,
    objective: Objective = "step",
    schedule: str | None = None,
) -> Plan:
    """Return the best plan a planner finds, verified, scheduled and predicted.

    Where nothing fits in memory, `graphpipe`, `spp`, `piper`, `gpipe` and `pipedream-2bw` let stages recompute in the
    backward what they computed (`Stage.recompute`).

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types, from `estimate` or `profile`.
        cluster: devices and links.
        batch_size: samples of a mini-batch.
        planner: a name in `graphpipe.planners.registry.PLANNERS`; the baselines make sequential pipelines.
        micro_batch: only this micro-batch size; None sweeps.
        mixed_micro_batches: let every stage have its own micro-batch size (kFkB schedule).
        objective: `step` ranks by simulated step time, warm-up, drain, communication and update included;
            `bottleneck`, the published objective, by the slowest stage alone (and only micro-batch sizes by step time).
        schedule: `1f1b`, `gpipe`, `zb-h1`, `zb-auto`, or `auto` for the one with the shortest step, which may use all
            the memory there is and gives stages micro-batch sizes of their own where that pays. Planners with a
            schedule of their own keep it under `1f1b`. None: see `default_schedule`.

    Raises:
        Infeasible: no plan fits in memory; names the stage of the nearest miss and the bytes it lacks.
        InvalidInput: an unknown planner, objective or schedule, a batch or micro-batch out of range, costs of another
            graph, or a schedule that mixed micro-batch sizes do not run under.
    """
    problem = _problem(graph, costs, cluster, batch_size)
    if objective not in _OBJECTIVES:
        raise InvalidInput(
            f"unknown objective '{objective}'", where="objective", remedy=nearest(objective, [*_OBJECTIVES])
        )
    check_settings(
        batch_size=batch_size,
        planner=planner,
        micro_batch=micro_batch,
        mixed_micro_batches=mixed_micro_batches,
        schedule=schedule,
    )
    schedule = schedule or default_schedule(planner, cluster, objective, mixed_micro_batches=mixed_micro_batches)
    schedules = schedule == AUTO and not mixed_micro_batches
    options = Options(
        objective=objective,
        evaluate=step_seconds,
        micro_batch=micro_batch,
        mixed_micro_batches=mixed_micro_batches,
        scheduled=partial(best_scheduled, evaluate=step_seconds) if schedules else None,
    )
    start = time.perf_counter()
    with _collection_paused():
        found = planner_named(planner)(problem, options)
        if schedule != "1f1b" and not mixed_micro_batches:
            found = scheduled(found, schedule, step_seconds)
        return _checked(replace(found, search_seconds=time.perf_counter() - start))


def check_settings(
    *, batch_size: int, planner: str, micro_batch: int | None, mixed_micro_batches: bool, schedule: str | None
) -> None:
    """Check what `plan` is told besides graph, costs and cluster.

    Raises:
        InvalidInput: an unknown planner or schedule, a micro-batch out of range, or settings that exclude each other.
    """
    if micro_batch is not None and (micro_batch < 1 or batch_size % micro_batch):
        raise InvalidInput(
            f"micro-batch {micro_batch} does not divide batch {batch_size}",
            where="micro_batch",
            remedy=f"Choose a divisor of {batch_size}.",
        )
    planner_named(planner)
    if schedule is not None:
        check_choice(schedule)
    if mixed_micro_batches and schedule not in (None, "1f1b", "auto"):
        raise InvalidInput(
            f"schedule '{schedule}' needs one micro-batch size, mixed ones run under kFkB",
            where="schedule",
            remedy="Leave out the schedule, or the mixed micro-batches.",
        )


def default_schedule(planner: str, cluster: Cluster, objective: Objective, *, mixed_micro_batches: bool) -> str:
    """Return the schedule that a planner is asked for where the caller does not say.

    `auto` of `graphpipe`, `1f1b` of the baselines, of the published objective and of kFkB (mixed micro-batch sizes).
    Where devices share cores, as processes on one machine do, `1f1b` too: there is always other work for a core, so
    that filling bubbles gains nothing, and two halves of a backward cost more than a whole one.
    """
    searched = planner == "graphpipe" and objective == "step" and not mixed_micro_batches
    return AUTO if searched and cluster.cores_per_node is None else "1f1b"


def hand_plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    *,
    batch_size: int,
    stages: Sequence[HandStage],
    schedule: str = "1f1b",
) -> Plan:
    """Return the plan of stages written by hand, verified, scheduled and predicted.

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types.
        cluster: devices and links.
        batch_size: samples of a mini-batch.
        stages: operators (with `*` patterns), devices and micro-batch of each.
        schedule: a name in `graphpipe.schedule.SCHEDULERS`.

    Raises:
        InvalidInput: a constraint is violated.
        Infeasible: a stage does not fit in memory.
    """
    problem = _problem(graph, costs, cluster, batch_size)
    return _checked(plan_by_hand(problem, HandPlan(stages=tuple(stages), schedule=schedule)))


def choose_backwards(plan: Plan, module: Any, *, captured: "Captured | None" = None) -> Plan:
    """Return the plan with whole backwards for the stages whose operations cannot be split in two halves.

    Only where the plan's schedule splits backwards is anything asked or changed. The runtime does such a backward whole
    in any case; a plan that says so is scheduled and predicted as it will run.

    Args:
        plan: for the graph that was captured from the model.
        module: the model, a `torch.nn.Module`.
        captured: what the graph was made of, if it is at hand; None: the model is captured again.

    Raises:
        InvalidInput: the plan is for another model.
    """
    if plan.schedule not in SPLIT:
        return plan
    from graphpipe.model.split.whole_backwards import whole_backwards

    whole = whole_backwards(plan, module, captured)
    if not whole:
        return plan
    stages = (replace(stage, backward="whole") if n in whole else stage for n, stage in enumerate(plan.stages))
    found = replace(plan, stages=tuple(stages), prediction=None)
    return replace(found, prediction=predict(found))


def _problem(graph: Graph, costs: CostTable, cluster: Cluster, batch_size: int) -> Problem:
    if batch_size < 1:
        raise InvalidInput(f"is {batch_size}, must be at least 1", where="batch_size")
    costs.check_for(graph, {device.type for device in cluster.devices})
    return Problem(graph, costs, cluster, batch_size)


def _checked(found: Plan) -> Plan:
    verify(found)
    # The prediction simulates the plan's schedule, which is verified when it is built.
    return replace(found, prediction=predict(found))


@contextmanager
def _collection_paused() -> Generator[None]:
    """Run a block without cyclic garbage collection.

    A search makes hundreds of thousands of values that refer to each other in one direction only; reference counting
    frees them. Each full collection in between would walk all objects of the process: 0.2 s once torch is imported.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
