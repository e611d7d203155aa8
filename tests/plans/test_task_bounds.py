"""The seconds of a stage's tasks on its fastest and on its slowest devices, by hand."""

from dataclasses import replace

from problems import KIND, cluster, table

from graphpipe.costs import Curve
from graphpipe.graph import Graph, Op
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans.estimates import TaskBounds, task_bounds


def mixed() -> Problem:
    """Return an operator on two devices: one takes 2 seconds per sample for each pass, the other 6, 1 and 1."""
    graph = Graph(name="one", ops=(Op(name="a"),), edges=())
    costs, equal = table(graph, {"a": (0.0, 2.0)}), cluster(2)
    devices = (equal.devices[0], replace(equal.devices[1], type="other"))
    kinds = (KIND, replace(KIND, name="other"))
    other = replace(
        costs.rows[0],
        device_type="other",
        forward=Curve(lines=((0.0, 6.0),)),
        input_gradient=Curve(lines=((0.0, 1.0),)),
        weight_gradient=Curve(lines=((0.0, 1.0),)),
    )
    both = replace(costs, rows=(*costs.rows, other))
    return Problem(graph, both, replace(equal, devices=devices, device_types=kinds), 8)


def test_each_task_is_that_of_the_fastest_device_and_both_together_those_of_the_slowest() -> None:
    plan = assemble(mixed(), [Part(("a",), 2, 2)], planner="test")
    wanted = TaskBounds(forward=2.0, backward=2.0, input_gradient=1.0, both=8.0, both_without_weights=7.0)
    assert task_bounds(plan, 0) == wanted


def test_devices_micro_batches_and_recomputation_have_their_own_seconds() -> None:
    problem = mixed()
    alone = assemble(problem, [Part(("a",), 1, 2)], planner="test")
    assert task_bounds(alone, 0) == TaskBounds(4.0, 8.0, 4.0, 12.0, 8.0)
    again = replace(alone, stages=(replace(alone.stages[0], recompute="full"),))
    assert task_bounds(again, 0).both == 16.0
    other = replace(alone, stages=(replace(alone.stages[0], devices=(1,)),))
    assert task_bounds(other, 0) == TaskBounds(12.0, 4.0, 2.0, 16.0, 14.0)
    assert task_bounds(assemble(problem, [Part(("a",), 1, 4)], planner="test"), 0).forward == 8.0
