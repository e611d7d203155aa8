"""Plans that leave the last devices unused, where the devices are no power of two in equal nodes."""

from dataclasses import replace

import pytest
from problems import cluster, table

import graphpipe as gp
from graphpipe.errors import Infeasible
from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.device_subsets import with_device_subsets
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.search.search import candidates
from graphpipe.plans import Plan
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

PAIR = Graph(name="pair", ops=(Op(name="a"), Op(name="b")), edges=(Edge(source="a", target="b"),))


def problem(devices: int) -> Problem:
    """Return a problem of two equal operators on devices of one node."""
    return Problem(PAIR, table(PAIR, dict.fromkeys("ab", (0.0, 1.0))), cluster(devices, per_node=8), 12)


class Search:
    """A search that finds two stages for two devices, one stage on all of three, and nothing else."""

    def __init__(self) -> None:
        self.counts = list[int]()

    def __call__(self, problem: Problem, options: Options) -> Plan:
        count = len(problem.cluster.devices)
        self.counts.append(count)
        if count == 2:
            return assemble(problem, [Part(("a",), 1, 1), Part(("b",), 1, 1)], planner="test")
        if count == 3:
            return assemble(problem, [Part(("a", "b"), 3, 12)], planner="test")
        raise Infeasible("no plan", remedy="Use two devices.")


def test_a_faster_plan_for_fewer_devices_runs_on_the_first_devices_of_the_whole_cluster() -> None:
    whole, search = problem(3), Search()
    options = Options(evaluate=lambda plan: 30.0 * len(plan.used_devices))
    plan = with_device_subsets(whole, search(whole, options), options, search)
    assert search.counts == [3, 2]
    assert plan.cluster == whole.cluster
    assert [stage.devices for stage in plan.stages] == [(0,), (1,)]


def test_a_slower_plan_for_fewer_devices_is_not_taken() -> None:
    whole, search = problem(5), Search()
    best = assemble(whole, [Part(("a",), 2, 6), Part(("b",), 3, 6)], planner="test")
    assert with_device_subsets(whole, best, Options(), search) is best
    assert search.counts == [4]


def test_a_part_whose_candidates_rank_far_behind_is_left_early() -> None:
    """The search of a part once made small changes of each plan, and shared its devices, however slow it was."""
    whole = problem(5)
    best = assemble(whole, [Part(("a",), 2, 6), Part(("b",), 3, 6)], planner="test")
    wanted = list[float]()

    def search(problem: Problem, options: Options) -> Plan:
        wanted.append(options.most_ranked)
        found = candidates(problem, options, planner="test", chains=(False,))
        raise AssertionError(found)

    options = Options(evaluate=lambda _: 100.0, ranked=lambda *_: 116.0, scheduled=lambda plans: plans[0])
    assert with_device_subsets(whole, best, options, search).stages == best.stages
    assert wanted == pytest.approx([115.0] * len(wanted))


def test_plans_are_compared_under_their_best_schedules() -> None:
    """A plan of unequal devices under 1F1B lost against a slower one that already had its best schedule."""
    whole, search = problem(5), Search()
    best = assemble(whole, [Part(("a",), 2, 6), Part(("b",), 3, 6)], planner="test")

    def seconds(plan: Plan) -> float:
        return (3.0 if plan.schedule == "1f1b" else 1.0) if len(plan.used_devices) == 5 else 2.0

    options = Options(evaluate=seconds, scheduled=lambda plans: replace(plans[0], schedule="zb-auto"))
    found = with_device_subsets(whole, best, options, search)
    assert (len(found.used_devices), found.schedule) == (5, "zb-auto")


def test_a_power_of_two_in_equal_nodes_is_not_searched_again() -> None:
    search = Search()
    for whole in (problem(4), problem(8)):
        best = assemble(whole, [Part(("a", "b"), 4, 12)], planner="test")
        assert with_device_subsets(whole, best, Options(), search) is best
    assert not search.counts


def test_seven_devices_are_not_slower_than_six() -> None:
    """A plan for 16 devices was once faster than the one for 17, because the search filled all devices."""
    found = find_zoo_graph("two-tower")
    assert found is not None
    nodes = gp.Cluster.preset("summit:2x6")
    steps: list[float] = []
    for count in (6, 7):
        devices = nodes.only([device.name for device in nodes.devices[:count]])
        costs = gp.estimate(found.graph, devices)
        plan = gp.plan(found.graph, costs, devices, batch_size=256, schedule="1f1b", stages_per_device=1)
        assert plan.prediction is not None
        steps.append(plan.prediction.step_seconds)
    assert steps[1] <= steps[0] * (1 + 1e-9)
