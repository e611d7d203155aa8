"""The search of the graph planner and the chain planner: forms of the graph x settings x targets.

1. Decompose the graph into series and parallel parts. The forms to cut are chains, the graph with its branches bundled
   into more and more groups, the graph itself, with light branches behind heavy ones, and with its edges reversed.
2. For every form, micro-batch size and least data-parallel degree, search the smallest feasible time per sample (the
   outer search of Algorithm 1) with the dynamic program of `dynamic_program` (its recursion).
3. Rank the partitions found, and some with a larger bottleneck but fewer stages, by step time. Their samples in flight
   come from Algorithm 2.
4. Estimate partitions of the linearised graph as sequential pipelines too, and add the shortest chains that DAPPLE's
   search finds, if the best estimate is a chain.

All devices count as the slowest and smallest one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.graph import Graph
from graphpipe.graph.series_parallel import Leaf, Series, decompose
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem, is_serial
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.planners.search.candidates import Candidates, Ranking
from graphpipe.planners.search.partition_estimate import PartitionEstimator
from graphpipe.planners.search.partition_search import PartitionSearch
from graphpipe.planners.search.setting_table import SettingTable, shares
from graphpipe.planners.search.target_search import GraphForm
from graphpipe.planners.search.tree_rewrites import bundled, paired, width
from graphpipe.plans.estimates import bottleneck_seconds, least_step_seconds
from graphpipe.plans.plan import Plan


def search(problem: Problem, options: Options, *, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Return the best plan found, by the caller's measure.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        chains: kinds of pipeline, see `candidates`.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return options.chosen(candidates(problem, options, planner=planner, chains=chains))


def candidates(problem: Problem, options: Options, *, planner: str, chains: tuple[bool, ...]) -> list[Plan]:
    """Return the most promising plans, of which each may be the best under the caller's schedule.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plans.
        chains: kinds of pipeline to search: False for a graph of stages, True for a sequential pipeline over the
            linearised graph. Both share the search, so that the second takes little time.

    Raises:
        Infeasible: nothing fits in memory.
    """
    if options.objective == "bottleneck" and options.micro_batch is None:
        return [_best_of_sizes(problem, options, planner, chains)]
    if is_serial(problem.graph) and False in chains:
        chains = (False,)
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    split, most = options.objective == "step" and options.splits_backward, options.effort.candidates
    waiting = options.objective == "step" and not split
    estimator = PartitionEstimator(problem, costs, waiting=waiting)
    rankings = tuple(
        Ranking(
            replace(estimator, chain=chain),  # The copies share what they know about stages.
            Candidates(options.objective, most),
            Candidates("split", most) if split else None,
        )
        for chain in chains
    )
    tail = WholeBatchTail.of(problem.graph)
    run = PartitionSearch(problem, costs, tail, planner, rankings, options.most_at_first, options.effort.relaxed)
    if run.tail.before is None:
        for ranking in rankings:
            ranking.offer([run.tail.part(problem)])
    else:
        _sweep(run, decompose(run.tail.before), options)
    kinds = run.candidates()
    options.remembered.add_search(problem, run.with_memory)
    plans = distinct(plan for kind in kinds for plan in kind)
    if options.objective == "bottleneck":
        return [min(plans, key=bottleneck_seconds)]
    if options.scheduled is not None:
        plans = _fast_enough(plans, options)
    if False in chains and options.effort.chains:
        plans = distinct([*plans, *run.shortest_chains()])
    return plans


def _fast_enough(plans: list[Plan], options: Options) -> list[Plan]:
    """Return the plans that small changes and devices that share stages may make as fast as the caller wants.

    Raises:
        Infeasible: there are none, or none ranks as well as the caller wants.
    """
    if (most := options.most_at_first) == inf:
        return plans
    least = partial(least_step_seconds, whole_backwards=not options.splits_backward)
    fast, limit = [plan for plan in plans if least(plan) < most], options.most_ranked
    if any(limit == inf or options.ranked(plan, limit) <= limit for plan in fast):
        return fast
    raise Infeasible(f"every plan takes at least {most} seconds")


def distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Return the plans whose stages and edges differ: a graph of stages may be found as a sequential pipeline too."""
    known: dict[object, Plan] = {}
    for plan in plans:
        known.setdefault((plan.stages, plan.edges), plan)
    return list(known.values())


def _best_of_sizes(problem: Problem, options: Options, planner: str, chains: tuple[bool, ...]) -> Plan:
    """Search the best bottleneck of every micro-batch size, as the published planner does, and compare the steps."""
    plans: list[Plan] = []
    misses: list[Infeasible] = []
    for size in micro_batch_sizes(problem.batch_size):
        try:
            plans.append(search(problem, replace(options, micro_batch=size), planner=planner, chains=chains))
        except Infeasible as miss:
            misses.append(miss)
    if not plans:
        raise misses[0]
    return options.best(plans)


def _sweep(run: PartitionSearch, tree: Series, options: Options) -> None:
    """Search every form of the graph, narrow forms and large units first.

    These are cheap to walk, and their results bound the rest of the search.
    """
    problem = run.problem
    sizes = options.sizes(problem.batch_size)
    devices = len(problem.cluster.devices)
    units = [unit for unit in range(devices, 0, -1) if any(size % unit == 0 for size in sizes)]
    tables = [SettingTable.of(problem, run.costs, unit, sizes, frozenset(tree.ops)) for unit in units]
    weights = shares(problem, run.costs)
    graphs = any(not ranking.estimator.chain for ranking in run.rankings)
    assert run.tail.before is not None
    for tree_form, reverse in _forms(run.tail.before, tree, weights, graphs=graphs):
        form = GraphForm.of(problem, tree_form, reverse=reverse)
        for table in tables:
            options.check_time()
            run.search_form(table, form.for_units(table, weights))
    if graphs and options.effort.exhaustive:
        run.exhaust(sizes)


def _forms(graph: Graph, tree: Series, weights: Mapping[str, float], *, graphs: bool) -> list[tuple[Series, bool]]:
    """Return the forms to cut: chains, then (for graphs of stages) wider and wider ones, the widest also reversed.

    If branches differ, light ones also follow heavy ones (`paired`). There are two chains: the operators in the graph's
    order, and branch after branch. Without the second, inception_v3 on two types of devices ended 5 % behind `spp`.
    """
    in_order = Series(tuple(Leaf(name) for name in graph.order))
    bundle = bundled(tree, 1)
    forms = [(in_order, False), *([(bundle, False)] if bundle.ops != in_order.ops else [])]
    widest = width(tree)
    if graphs and widest > 1:
        widths = [*(2**k for k in range(1, widest.bit_length()) if 2**k < widest), widest]
        forms += [(bundled(tree, groups), False) for groups in widths[:-1]]
        forms += [(pairs, False)] if (pairs := paired(tree, weights)) != tree else []
        forms.append((tree, False))
        forms.append((tree, True))
    return forms
