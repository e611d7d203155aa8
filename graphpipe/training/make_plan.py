"""The plan of a training: made from its configuration, or read from a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable
from graphpipe.costs.analytic import estimate
from graphpipe.costs.check_units import warn_of_units
from graphpipe.costs.ranks.degrees import operators_of
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.capture_cache.capture_cache import cached_capture, cached_capture_for
from graphpipe.model.shards.with_shards import captured_with_shards
from graphpipe.model.split.split import build_stages
from graphpipe.planning.backwards import choose_backwards
from graphpipe.planning.by_hand import load_hand_plan
from graphpipe.planning.choose_ranks import shareable
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.planning.honoured import check_asked, honoured
from graphpipe.planning.plan import plan
from graphpipe.plans import Plan
from graphpipe.profiler.profile import profile
from graphpipe.run.device.precision import check_planned_precision
from graphpipe.simulator import predict
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.factories import whole_optimizer
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.task import Task
from graphpipe.waiting import waiting

_PROFILED = 32
"""Samples of a data set that are read for profiling. More rows are made of them."""


def make_plan(config: TrainConfig, task: Task, cluster: Cluster, tell: Callable[[str], None]) -> tuple[Plan, Captured]:
    """Capture the task's model, find its costs, and return a plan with its prediction and the captured model.

    Args:
        config: of the training.
        task: its task.
        cluster: the devices to plan for.
        tell: called with a line when profiling starts.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the model, the costs or the settings cannot be used.
    """
    captured, costs = captured_with_costs(config, task, cluster, tell)
    planned = plan_with_costs(config, captured.graph, costs, cluster)
    captured = split_like(captured, planned.graph)
    return choose_backwards(planned, task.model, captured=captured), captured


def captured_with_costs(
    config: TrainConfig, task: Task, cluster: Cluster, tell: Callable[[str], None]
) -> tuple[Captured, CostTable]:
    """Capture the task's model and find its costs, as `[plan]` of the configuration says.

    Args, Raises: as `make_plan`.
    """
    settings, shares = config.plan, config.plan.tensor != 1
    if settings.stages:
        by_hand = load_hand_plan(Path(config.folder) / settings.stages)  # refuses a bad file before profiling
        shares = shares or any(stage.tensor > 1 for stage in by_hand.stages)
    check_asked(settings, config.train.batch_size)  # before profiling, which takes a while
    given = _given_costs(config)
    shares = shares or (given is not None and any(row.shared for row in given.rows))
    with waiting("capturing the model"):
        names = tuple(name.strip() for name in settings.look_into.split(",") if name.strip())
        precision = config.train.precision
        cache = _cache(config)
        captured = cached_capture(
            task.model,
            task.example_inputs,
            cache,
            split=names,
            precision=precision,
            graph=task.graph,
            fused_attention=not cluster.on_processors,
        )
        if shares:
            captured = captured_with_shards(
                captured,
                task.model,
                sequence_parallel=settings.sequence_parallel,
                loss_fn=task.loss_fn,
                measured="" if given is None else given.graph_fingerprint,
            )
    if given is not None:
        warn_of_units(CostModel(captured.graph, given, cluster), str(Path(config.folder) / settings.costs))
        return captured, given
    return captured, _costs(config, task, captured, cluster, tell)


def plan_with_costs(config: TrainConfig, graph: Graph, costs: CostTable, cluster: Cluster) -> Plan:
    """Return a plan by the settings of the configuration.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the settings cannot be used.
    """
    settings, batch_size = config.plan, config.train.batch_size
    if config.train.balance and settings.loads:
        settings = replace(settings, balance=True)
    if settings.stages and cluster == Cluster.resolve(config.cluster):
        by_hand = load_hand_plan(Path(config.folder) / settings.stages)
        return hand_plan(
            graph,
            costs,
            cluster,
            batch_size=batch_size,
            stages=by_hand.stages,
            schedule=by_hand.schedule,
            loads=settings.loads,
            balance=settings.balance,
            split=settings.split,
            weights=settings.weights,
            predictor=settings.predictor,
        )
    return plan(graph, costs, cluster, settings, batch_size=batch_size)


def plan_again(config: TrainConfig, last: Plan, cluster: Cluster, costs: CostTable | None = None) -> Plan:
    """Return a plan for other devices by the settings of the configuration, with the costs and weight policy of a plan.

    Args:
        config: of the training.
        last: that was run.
        cluster: the devices to plan for.
        costs: on the types of these devices. None: those of the plan.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the settings cannot be used.
    """
    again = with_policy_of(config, last)
    again = replace(again, plan=replace(again.plan, loads=None, balance=False))  # The costs have them.
    return plan_with_costs(again, last.graph, costs or last.costs, cluster)


def with_policy_of(config: TrainConfig, last: Plan) -> TrainConfig:
    """Return a configuration that plans with the weight policy of a plan, without settings that this policy excludes.

    That plan may have been given as a file, so that its policy is not in the configuration.
    """
    settings = replace(config.plan, weights=last.weights, predictor=last.predictor)
    return replace(config, plan=honoured(settings))


def use_plan(config: TrainConfig, task: Task, given: Plan | str | Path) -> tuple[Plan, Captured]:
    """Return a given plan, or that of a file, with a new prediction, and the captured model that it is for.

    Raises:
        InvalidInput: the plan is for inference, for another mini-batch size or for another model.
    """
    plan = given if isinstance(given, Plan) else Plan.load(given)
    plan.require_training()
    where = f"plan of '{plan.graph.name}'" if isinstance(given, Plan) else str(given)
    if plan.batch_size != config.train.batch_size:
        raise InvalidInput(
            f"the plan is for batches of {plan.batch_size}, the configuration says {config.train.batch_size}",
            where=where,
            remedy=f"Plan again, or set train.batch_size={plan.batch_size}.",
        )
    check_planned_precision(plan, config.train.precision, where="train.precision")
    warn_of_units(plan.cost_model, where)
    with waiting("capturing the model"):
        captured = cached_capture_for(task.model, task.example_inputs, plan.graph, _cache(config))
    build_stages(task.model, plan, captured)  # refuses a plan that does not fit the model
    return replace(plan, prediction=predict(plan)), captured


def _cache(config: TrainConfig) -> Path | None:
    return cache_folder() if config.plan.cache else None


def _given_costs(config: TrainConfig) -> CostTable | None:
    """Return the costs that the configuration names; None: they are estimated or measured."""
    if config.plan.costs in ("estimate", "profile"):
        return None
    return CostTable.load(Path(config.folder) / config.plan.costs)


def _costs(
    config: TrainConfig, task: Task, captured: Captured, cluster: Cluster, tell: Callable[[str], None]
) -> CostTable:
    graph = captured.graph
    if config.plan.costs == "estimate":
        return estimate(graph, cluster)
    tell(f"profiling {len(graph.ops)} operators as they will run on {cluster.name}")
    size = config.train.batch_size
    inputs, targets = first_samples(task, min(size, _PROFILED), size, config.train.seed)
    return profile(
        task.model,
        inputs,
        cluster,
        captured=captured,
        cache=_cache(config),
        loss_fn=task.loss_fn,
        targets=targets,
        batch_sizes=sorted({max(1, size >> halvings) for halvings in range(8)}),
        optimizer=lambda parameters: whole_optimizer(config, task)(cast("list[nn.Parameter]", parameters)),
        tensor=_degrees(config, graph, cluster),
    )


def _degrees(config: TrainConfig, graph: Graph, cluster: Cluster) -> list[int]:
    """Return the numbers of devices per replica that the plan may have."""
    if config.plan.stages:
        by_hand = load_hand_plan(Path(config.folder) / config.plan.stages)
        asked = {stage.tensor for stage in by_hand.stages}
    else:
        asked = {*shareable(graph, cluster)} if config.plan.tensor == "auto" else {config.plan.tensor}
    return [1, *sorted(ranks for ranks in asked - {1} if operators_of(graph, ranks))]
