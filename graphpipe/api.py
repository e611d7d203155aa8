"""The public functions that combine several packages: estimate, plan, simulate."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from graphpipe.cluster import Cluster
from graphpipe.collection_pause import collection_paused
from graphpipe.costs import CostTable, Loads, declare_loads
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.plan_settings import check_objective, check_settings, default_schedule, default_stages_per_device
from graphpipe.planners.best_candidate import BestCandidate
from graphpipe.planners.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planners.choose_schedule import AS_PLANNED, AUTO, scheduled
from graphpipe.planners.choose_splits import AUTO as AUTO_SPLIT
from graphpipe.planners.choose_splits import SplitChoice, plan_with_splits
from graphpipe.planners.problem.in_order_bound import least_seconds
from graphpipe.planners.problem.options import InferenceObjective, Objective, OffloadTo, Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import DEFAULT, find_planner, planner_names
from graphpipe.planners.remembered_seconds import RememberedSeconds
from graphpipe.planners.weight_settings import check_inference_weights, check_weights
from graphpipe.planners.without_flush import WithoutFlush
from graphpipe.plans.backward_record import BackwardRecord, whole_stages
from graphpipe.plans.estimates import period_seconds
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.plans.verify import verify
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.critical_path import applies
from graphpipe.simulator.simulate import simulate

if TYPE_CHECKING:
    from graphpipe.model.capture.capture import Captured

__all__ = ["choose_backwards", "estimate", "hand_plan", "plan", "simulate", "under_policy"]


def plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    *,
    batch_size: int,
    planner: str = DEFAULT,
    micro_batch: int | None = None,
    mixed_micro_batches: bool = False,
    objective: Objective | InferenceObjective | None = None,
    schedule: str | None = None,
    loads: Loads | None = None,
    split: SplitChoice = "none",
    inference: bool = False,
    weights: WeightPolicy = "flush",
    predictor: Predictor = "",
    stages_per_device: int | None = None,
    offload_to: OffloadTo = "host",
) -> Plan:
    """Return the best plan a planner finds, verified, scheduled and predicted.

    If no plan fits in memory, most planners let stages recompute in the backward (`Stage.recompute`). These are the
    planners with `Planner.recomputes`. GraphPipe's own planners then also try to shard the replicas' state
    (`Stage.state`).

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types, from `estimate` or `profile`.
        cluster: devices and links.
        batch_size: samples of a mini-batch.
        planner: a name in `graphpipe.planners.registry.all_planners()`. The baselines make sequential pipelines.
        micro_batch: the only micro-batch size to try; None tries all.
        mixed_micro_batches: let every stage have its own micro-batch size (kFkB schedule).
        objective: `step` ranks by simulated step time, including warm-up, drain, communication and update.
            `bottleneck`, the published objective, ranks by the slowest stage, and only micro-batch sizes by step time.
            For inference, `throughput` ranks by the busiest device or link of a full pipeline, and `latency` by the
            time from an empty pipeline to the last answer of a mini-batch. None: `step` or `throughput`.
        schedule: a scheduler's name, such as `1f1b` or `zb-h1`, or `auto` for the one with the shortest step. `auto`
            may use all the available memory. GraphPipe's own planners improve their plans under the schedule, and give
            stages different micro-batch sizes if that is faster. Planners that choose a schedule themselves keep it
            under `1f1b`. None: see `default_schedule`.
        loads: how much work samples are for some operators, as multiples of the sample that the costs were found for.
            By the name of a submodule, an operator, a pattern or a model input: the shares of samples by load, or the
            loads of some samples. None: as the costs say, usually the same for every sample. Plans are for the expected
            loads, and fit in memory for the largest.
        split: operators to split, so that their parts can be in different stages (docs/splits.md). `none`, the names
            of operators (`NAME:4` splits by outputs in 4 parts, `NAME:rows4` by rows), or `auto` for those whose split
            shortens the step of this planner's plan.
        inference: plan for `InferencePipeline`: only forwards, without gradients and optimizer state.
        weights: which weights a micro-batch sees. `flush`: those that all earlier mini-batches have updated; the
            pipeline drains in between. Under the other policies it does not (docs/asynchronous.md), and plans are
            ranked by their steady period.
        predictor: of the policy `predict`: `pipeoptim`, `spectrain` or `xpipe`.
        stages_per_device: the most stages that a device may host (docs/sharing.md). 1: every stage has devices of its
            own, which is what the baselines plan in any case. None: see `default_stages_per_device`.
        offload_to: where stages may rest what they offload, if memory is short. `host`: in the memory of their nodes.
            `neighbours`: also on other devices of the pipeline, if that is faster.

    Raises:
        Infeasible: no plan fits in memory. The stage that nearly fits and the bytes it lacks are named.
        InvalidInput: an unknown planner, objective or schedule, a batch or micro-batch out of range, costs of another
            graph, loads of unknown operators, operators that cannot be split, a schedule that mixed micro-batch
            sizes do not run under, or settings that the weight policy excludes.
    """
    problem = _problem(graph, costs, cluster, batch_size, loads)
    check_objective(objective, inference=inference)
    check_settings(
        batch_size=batch_size,
        planner=planner,
        micro_batch=micro_batch,
        mixed_micro_batches=mixed_micro_batches,
        schedule=schedule,
        weights=weights,
        predictor=predictor,
        stages_per_device=stages_per_device,
        offload_to=offload_to,
    )
    if inference:
        if schedule is not None or mixed_micro_batches or split == AUTO_SPLIT:
            what = "inference has only forwards and equal micro-batches, and splits only operators that are named"
            raise InvalidInput(what, where="inference", remedy="Leave out the schedule, mixed sizes and split 'auto'.")
        check_inference_weights(weights)
        return _inference_plan(replace(problem, trains=False), planner, objective == "latency", micro_batch, split)
    ranked: Objective = "bottleneck" if objective == "bottleneck" else "step"
    if not find_planner(planner).trains:
        raise InvalidInput(f"planner '{planner}' plans only inference", where="planner", remedy="Plan for inference.")
    without_flush = None
    if weights != "flush":
        schedule = schedule or AS_PLANNED
        without_flush = WithoutFlush(weights=weights, predictor=predictor, evaluate=step_seconds, schedule=schedule)
    flushes = weights == "flush"
    stages_per_device = (stages_per_device or default_stages_per_device(cluster, ranked)) if flushes else 1
    schedule = schedule or default_schedule(planner, cluster, ranked, mixed_micro_batches=mixed_micro_batches)
    seconds = RememberedSeconds(lambda plan, _: step_seconds(plan))
    choose = BestCandidate(choice=schedule, evaluate=seconds, micro_batch=micro_batch, quick=applies)
    options = Options(
        objective=ranked,
        evaluate=seconds,
        least=least_seconds,
        micro_batch=micro_batch,
        mixed_micro_batches=mixed_micro_batches,
        scheduled=None if mixed_micro_batches else choose,
        ranked=choose.ranked,
        stages_per_device=stages_per_device,
        offload_to=offload_to,
        splits_backward=schedule == AUTO or find_scheduler(schedule).splits_backward,
    )

    def find(problem: Problem, options: Options = options) -> Plan:
        if without_flush is not None:
            return without_flush.plan(find_planner(planner), problem, options)
        found = find_planner(planner).plan(problem, options)
        keeps = schedule == AS_PLANNED or mixed_micro_batches
        return found if keeps else scheduled(found, schedule, seconds)

    start = time.perf_counter()
    with collection_paused():
        if split == AUTO_SPLIT:  # Splits are compared without sharing, which takes longer to search.
            alone = partial(find, options=replace(options, stages_per_device=1))
            found = plan_with_splits(problem, split, alone, seconds)
            if stages_per_device > 1:  # One more may only pay where a device can host parts and what they feed.
                chosen = replace(problem, graph=found.graph, costs=found.costs)
                found = plan_with_splits(chosen, split, find, seconds, tried=1)
        else:
            found = plan_with_splits(problem, split, find, seconds)
        return _checked(replace(found, search_seconds=time.perf_counter() - start))


def _inference_plan(problem: Problem, planner: str, latency: bool, micro_batch: int | None, split: SplitChoice) -> Plan:
    if not find_planner(planner).infers:
        names = " or ".join(planner_names(trains=False))
        raise InvalidInput(f"planner '{planner}' plans only training", where="planner", remedy=f"Choose {names}.")
    evaluate = step_seconds if latency else period_seconds
    options = Options(
        inference_objective="latency" if latency else "throughput", evaluate=evaluate, micro_batch=micro_batch
    )
    start = time.perf_counter()
    with collection_paused():
        found = plan_with_splits(problem, split, lambda each: find_planner(planner).plan(each, options), evaluate)
        return _checked(replace(found, search_seconds=time.perf_counter() - start))


def hand_plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    *,
    batch_size: int,
    stages: Sequence[HandStage],
    schedule: str = "1f1b",
    loads: Loads | None = None,
    split: SplitChoice = "none",
    inference: bool = False,
    weights: WeightPolicy = "flush",
    predictor: Predictor = "",
) -> Plan:
    """Return the plan of stages written by hand, verified, scheduled and predicted.

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types.
        cluster: devices and links.
        batch_size: samples of a mini-batch.
        stages: operators (with `*` patterns), devices and micro-batch of each.
        schedule: a scheduler's name, such as `1f1b` or `kfkb`.
        loads: as in `plan`.
        split: as in `plan`. Stages name the parts of an operator, such as `top.linear.part*`. `auto` cannot be chosen.
        inference: only forwards, whatever the schedule says.
        weights: as in `plan`.
        predictor: as in `plan`.

    Raises:
        InvalidInput: a constraint is violated, or an operator cannot be split.
        Infeasible: a stage does not fit in memory.
    """
    problem = _problem(graph, costs, cluster, batch_size, loads)
    if split == AUTO_SPLIT:
        remedy = "Name the operators, because the stages name their parts."
        raise InvalidInput("'auto' does not work with hand-written stages", where="split", remedy=remedy)
    if inference:
        check_inference_weights(weights)
    problem = replace(problem, trains=not inference)
    by_hand = HandPlan(stages=tuple(stages), schedule=FORWARD_ONLY if inference else schedule)
    found = plan_with_splits(problem, split, lambda each: plan_by_hand(each, by_hand), step_seconds)
    if weights == "flush" and not predictor:
        return _checked(found)
    return under_policy(found, weights, predictor)


def under_policy(plan: Plan, weights: WeightPolicy, predictor: Predictor = "") -> Plan:
    """Return the stages of a plan under another weight policy, verified and predicted.

    The samples in flight are those of 1F1B, and the versions follow from them. A schedule that cannot go on without a
    flush becomes `1f1b`.

    Raises:
        InvalidInput: an unknown policy or predictor, or stages that the policy does not allow.
        Infeasible: the stages do not fit in memory with their versions.
    """
    check_weights(weights, predictor, None)
    keeps = weights == "flush" or find_scheduler(plan.schedule).endless
    return _checked(with_policy(plan if keeps else replace(plan, schedule=AS_PLANNED), weights, predictor))


def choose_backwards(plan: Plan, module: Any, *, captured: "Captured | None" = None) -> Plan:
    """Return the plan with whole backwards for the stages whose operations cannot be split in two halves.

    A plan whose schedule does not split backwards is returned unchanged. The runtime never splits the backward of such
    a stage. The returned plan records this, so that it is scheduled and predicted as it will run.

    Args:
        plan: for the graph that was captured from the model.
        module: the model, a `torch.nn.Module`.
        captured: the capture that the graph was made from; None: the model is captured again.

    Raises:
        InvalidInput: the plan is for another model.
    """
    if not find_scheduler(plan.schedule).splits_backward:
        return plan
    from graphpipe.model.split.whole_backwards import whole_backwards

    return _with_whole_backwards(plan, whole_backwards(plan, module, captured))


def choose_recorded_backwards(plan: Plan, record: BackwardRecord) -> Plan:
    """Return what `choose_backwards` returns, from a record of the model's backward instead of the model."""
    splits = find_scheduler(plan.schedule).splits_backward
    return _with_whole_backwards(plan, whole_stages(record, plan.stages)) if splits else plan


def _with_whole_backwards(plan: Plan, whole: Collection[int]) -> Plan:
    if not whole:
        return plan
    stages = (replace(stage, backward="whole") if n in whole else stage for n, stage in enumerate(plan.stages))
    found = replace(plan, stages=tuple(stages), prediction=None)
    return replace(found, prediction=predict(found))


def _problem(graph: Graph, costs: CostTable, cluster: Cluster, batch_size: int, loads: Loads | None) -> Problem:
    if batch_size < 1:
        raise InvalidInput(f"is {batch_size}, must be at least 1", where="batch_size")
    if loads is not None:
        costs = replace(costs, loads=declare_loads(graph, loads))
    costs.check_for(graph, {device.type for device in cluster.devices})
    return Problem(graph, costs, cluster, batch_size)


def _checked(found: Plan) -> Plan:
    verify(found)
    # The prediction simulates the plan's schedule, which is verified when it is built.
    return replace(found, prediction=predict(found))
