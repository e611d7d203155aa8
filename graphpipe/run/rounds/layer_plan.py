"""The plan that has each layer of some rounds as a stage, on the device of its forward."""

from dataclasses import replace

from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans import Plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds


def layer_plan(rounds: Rounds) -> Plan:
    """Return the plan whose stages are the layers, which says what each layer computes, sends and receives.

    Evaluations run it. In a training, rounds take the place of its schedule.
    """
    work = rounds.work
    problem = Problem(work.model.graph, work.model.table, work.model.cluster, work.micro_batches * work.micro_batch)
    parts = [Part(ops, 1, work.micro_batch) for ops in work.layers]
    devices = [(rounds.device_of[LayerTask("F", layer)],) for layer in range(len(work.layers))]
    plan = assemble(problem, parts, planner="gradients-apart", devices=devices)
    return replace(plan, stages=tuple(replace(stage, in_flight=work.micro_batch) for stage in plan.stages))
