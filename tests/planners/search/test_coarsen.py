"""Coarser forms of a graph keep every operator and lose little."""

from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_problem

from graphpipe.costs import CostModel
from graphpipe.graph.series_parallel import Leaf, decompose
from graphpipe.planners.problem.partition import crossing_bytes
from graphpipe.planners.search.coarsen import Coarsening
from graphpipe.planners.search.setting_table import SettingTable, shares
from graphpipe.planners.search.target_search import GraphForm, TargetPartitions, best_targets
from graphpipe.planners.search.tree_rewrites import cut_bytes


def coarsened(series, cuts: tuple[float, ...], weights: dict[str, float], largest_share: float):
    coarsening = Coarsening(weights, largest_share, {id(series): cuts}, {}, {})
    tree = coarsening.series(series)
    return [coarsening.runs[cast("Leaf", part).op] for part in tree.parts], coarsening.merged_cuts[id(tree)]


def test_light_neighbours_become_one_and_narrow_cuts_stay():
    series = type(decompose(random_problem(0).graph))(tuple(Leaf(name) for name in "abcdef"))
    weights = dict(zip("abcdef", (0.1, 0.1, 0.6, 0.05, 0.05, 0.1), strict=True))
    # The cut between d and e is narrower than all others, so it is kept.
    runs, cuts = coarsened(series, (0.0, 8.0, 8.0, 8.0, 1.0, 8.0, 0.0), weights, 0.25)
    assert runs == [("a", "b"), ("c",), ("d",), ("e", "f")]
    assert cuts == (0.0, 8.0, 8.0, 1.0, 0.0)


@given(seed=st.integers(0, 10**9), unit=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_a_coarse_form_keeps_every_operator_and_its_target(seed: int, unit: int):
    problem = random_problem(seed)
    tree, costs = decompose(problem.graph), CostModel(problem.graph, problem.costs, problem.cluster)
    table = SettingTable.of(
        problem, costs, unit if unit <= len(problem.cluster.devices) else 1, [4], frozenset(tree.ops)
    )
    fine = GraphForm.of(problem, tree, reverse=False)
    coarse = fine.for_units(table, shares(problem, costs))
    cuts = cut_bytes(tree, problem.graph)
    assert set(coarse.cuts[id(coarse.tree)]) <= set(cuts[id(tree)])
    fine_target, target = best_targets(table, fine, np.inf), best_targets(table, coarse, np.inf)
    # A run holds at most an eighth of the work of one unit of devices when all work is divided evenly.
    assert fine_target[0] * (1 - 0.004) <= target[0] <= fine_target[0] * 1.25 + 1e-12
    parts = TargetPartitions.of(table, coarse, target[:, None]).parts(0, 0)
    assert sorted(op for part in parts for op in part.ops) == sorted(op.name for op in problem.graph.ops)
    assert all(source < end for source, end in crossing_bytes(problem.graph, parts)), "stages in topological order"
