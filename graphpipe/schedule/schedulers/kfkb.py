"""Bursts: a stage forwards k micro-batches, then backwards k, each stage with its own k and micro-batch size.

Jeon et al., GraphPipe (ASPLOS 2025), section 6. Stage 0 below has micro-batches of one sample and k = 2, stage 1 of two
samples and k = 1; a sample takes one column, forward or back.

    time ->
    stage 0   F0 F1 F2 F3       B0 B1 F4 F5 B2 B3 F6 F7 B4 B5       B6 B7
    stage 1         F0 F0 B0 B0 F1 F1 B1 B1 F2 F2 B2 B2 F3 F3 B3 B3

The warm-up is `in_flight` samples: as many forwards as it takes until the first backward can come back without a pause.
"""

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, Task


def build(plan: Plan) -> Schedule:
    """Return the kFkB schedule of a plan, with `stage.burst` as each stage's k.

    Raises:
        InvalidInput: a stage's in_flight samples do not hold one burst, or are too few for the stages after it.
    """
    return merge("kfkb", plan, [order(plan, s, stage.burst) for s, stage in enumerate(plan.stages)])


def order(plan: Plan, stage: int, burst: int) -> list[Task]:
    """Return the tasks of one stage: warm-up forwards, `burst` backwards and `burst` forwards in turn, then the rest.

    Raises:
        InvalidInput: the stage's in_flight samples do not hold one burst.
    """
    count = plan.micro_batches(stage)
    warm_up = min(count, plan.stages[stage].in_flight // plan.stages[stage].micro_batch)
    if warm_up < min(burst, count):
        raise InvalidInput(
            f"{plan.stages[stage].in_flight} samples in flight do not hold {burst} micro-batches of "
            f"{plan.stages[stage].micro_batch}",
            where=f"stage '{plan.stages[stage].name}', in_flight",
            remedy=f"It must be at least {burst * plan.stages[stage].micro_batch}.",
        )
    forward = [Task("F", stage, index) for index in range(count)]
    backward = [Task("B", stage, index) for index in range(count)]
    tasks = forward[:warm_up]
    for done in range(0, count, burst):
        tasks += backward[done : done + burst]
        tasks += forward[warm_up + done : warm_up + done + burst]
    return tasks
