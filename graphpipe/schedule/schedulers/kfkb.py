"""kFkB: a stage does k forwards, then k backwards. Each stage has its own k and micro-batch size.

Jeon et al., GraphPipe (ASPLOS 2025), section 6. In the drawing, stage 0 has micro-batches of one sample and k = 2.
Stage 1 has micro-batches of two samples and k = 1. A sample takes one column, forward or backward.

    time ->
    stage 0   F0 F1 F2 F3       B0 B1 F4 F5 B2 B3 F6 F7 B4 B5       B6 B7
    stage 1         F0 F0 B0 B0 F1 F1 B1 B1 F2 F2 B2 B2 F3 F3 B3 B3

The warm-up is `in_flight` samples: as many forwards as the stage can do until its first gradient arrives.
"""

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler

NAME = "kfkb"


def build(plan: Plan) -> Schedule:
    """Return the kFkB schedule of a plan, with `stage.burst` as each stage's k.

    Raises:
        InvalidInput: a stage's in_flight samples are fewer than one burst, or too few for the stages after it.
    """
    return merge(NAME, plan, [order(plan, s, stage.burst) for s, stage in enumerate(plan.stages)])


def order(plan: Plan, stage: int, burst: int) -> list[StageTask]:
    """Return the tasks of one stage: warm-up forwards, `burst` backwards and `burst` forwards in turn, then the rest.

    Raises:
        InvalidInput: the stage's in_flight samples are fewer than one burst.
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
    forward = [StageTask("F", stage, index) for index in range(count)]
    backward = [StageTask("B", stage, index) for index in range(count)]
    tasks = forward[:warm_up]
    for done in range(0, count, burst):
        tasks += backward[done : done + burst]
        tasks += forward[warm_up + done : warm_up + done + burst]
    return tasks


SCHEDULER = Scheduler(name=NAME, build=build, uses_bursts=True, endless=True)
