"""The public functions for stages that a person wrote, and for the stages of a plan under another weight policy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.graph import Graph
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planning.choose_schedule import AS_PLANNED
from graphpipe.planning.choose_splits import plan_with_splits
from graphpipe.planning.honoured import check_by_hand
from graphpipe.planning.problem import make_problem, predicted, with_sequence_parallel
from graphpipe.planning.settings import PlanSettings, asked, check_weights
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator import step_seconds


def hand_plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    settings: PlanSettings | None = None,
    *,
    batch_size: int,
    stages: Sequence[HandStage],
    **keywords: Any,
) -> Plan:
    """Return the plan of stages written by hand, verified, scheduled and predicted.

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types.
        cluster: devices and links.
        settings: what the plan is asked for, beside its stages.
        batch_size: samples of a mini-batch.
        stages: operators (with `*` patterns), devices and micro-batch of each.
        keywords: fields of `PlanSettings` that differ from `settings`: `schedule` (a scheduler's name, also `kfkb`;
            `1f1b` by default), `loads`, `balance`, `split` (whose parts stages name, as `top.linear.part*`),
            `inference`, `weights`, `predictor` and `sequence_parallel`.

    Raises:
        InvalidInput: a constraint is violated, an operator cannot be split, or a setting is for planners only.
        Infeasible: a stage does not fit in memory.
    """
    settings = asked(settings, keywords)
    check_by_hand(settings)
    graph = with_sequence_parallel(graph, asked=settings.sequence_parallel)
    problem = make_problem(graph, costs, cluster, batch_size, settings.sample_loads, balance=settings.balance)
    problem = replace(problem, trains=not settings.inference)
    schedule = FORWARD_ONLY if settings.inference else settings.schedule or AS_PLANNED
    by_hand = HandPlan(stages=tuple(stages), schedule=schedule)
    plan = plan_with_splits(problem, settings.split_choice, lambda split: plan_by_hand(split, by_hand), step_seconds)
    if settings.weights == "flush":
        return predicted(plan)
    return under_policy(plan, settings.weights, settings.predictor)


def under_policy(plan: Plan, weights: WeightPolicy, predictor: Predictor = "") -> Plan:
    """Return the stages of a plan under another weight policy, verified and predicted.

    The samples in flight are those of 1F1B, and the versions follow from them. A schedule that cannot go on without a
    flush becomes `1f1b`.

    Raises:
        InvalidInput: an unknown policy or predictor, or stages that the policy does not allow.
        Infeasible: the stages do not fit in memory with their versions.
    """
    check_weights(weights, predictor)
    keeps = weights == "flush" or find_scheduler(plan.schedule).endless
    return predicted(with_policy(plan if keeps else replace(plan, schedule=AS_PLANNED), weights, predictor))
