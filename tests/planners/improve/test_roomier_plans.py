"""Plans made for more memory than there is, fitted into what there is."""

from dataclasses import replace
from math import inf

from builders import Part, make_plan

from graphpipe.planners.improve.roomier_plans import roomier_plans
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem


def test_a_micro_batch_that_the_caller_gives_is_not_halved():
    """A U-Net planned with micro-batches of 2 got micro-batches of 1, with which BatchNorm computes something else."""
    plan = make_plan([Part(micro_batch=2, saved_bytes=4.0)], batch_size=4)
    kinds = (replace(plan.cluster.device_types[0], memory_bytes=5.0),)  # a micro-batch of 2 needs 8
    problem = Problem(plan.graph, plan.costs, replace(plan.cluster, device_types=kinds), plan.batch_size)
    free, given = (
        list(roomier_plans(problem, options, lambda *_: plan, plan, inf))
        for options in (Options(), Options(micro_batch=2))
    )
    assert {stage.micro_batch for found in free for stage in found.stages} == {1}
    assert given == []
