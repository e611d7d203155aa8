"""All forwards, then all backwards (Huang et al., GPipe, NeurIPS 2019).

    time ->
    stage 0   F0 F1 F2 F3                   B0 B0 B1 B1 B2 B2 B3 B3
    stage 1      F0 F1 F2 F3          B0 B0 B1 B1 B2 B2 B3 B3
    stage 2         F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3

Backwards run in the order of the forwards, not in reverse. So every schedule sums a stage's gradients in the same
order, and all schedules give bitwise equal gradients. Each stage keeps the whole mini-batch in flight.
"""

from graphpipe.plans import Plan
from graphpipe.plans.sharding import rounded_up
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler

NAME = "gpipe"


def build(plan: Plan) -> Schedule:
    """Return the GPipe schedule of a plan. Every stage needs the whole mini-batch in flight."""
    orders = [
        [StageTask(kind, stage, index) for kind in ("F", "B") for index in range(plan.micro_batches(stage))]
        for stage in range(len(plan.stages))
    ]
    return merge(NAME, plan, orders)


def in_flight(plan: Plan) -> tuple[int, ...]:
    """Return the samples in flight of every stage: the whole mini-batch."""
    return tuple(rounded_up(plan.batch_size, stage.micro_batch) for stage in plan.stages)


SCHEDULER = Scheduler(name=NAME, build=build, in_flight=in_flight)
