"""Synchronous 1F1B on a graph of stages: warm-up forwards, then one backward and one forward in turn, then the rest.

Jeon et al., GraphPipe (ASPLOS 2025), section 6, Algorithm 2. In the drawing, stages 0 and 1 are two branches that join
in stage 2. They are equally deep, so both warm up with two micro-batches and run at the same time. In a chain of these
stages the first would warm up with three.

    time ->
    stage 0   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3
    stage 1   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3
    stage 2      F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3

A backward runs as early as it can, because it frees memory and the stages before it wait for its gradient.
`kfkb.order` makes the order of each stage, and `plans.in_flight` the samples that its warm-up keeps in flight.
"""

from graphpipe.plans import Plan
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import kfkb

NAME = "1f1b"


def build(plan: Plan) -> Schedule:
    """Return the 1F1B schedule of a plan: kFkB with k = 1 at every stage.

    Raises:
        InvalidInput: a stage's in_flight samples are fewer than one micro-batch, or too few for the stages after it.
    """
    return merge(NAME, plan, [kfkb.order(plan, stage, burst=1) for stage in range(len(plan.stages))])


SCHEDULER = Scheduler(name=NAME, build=build, endless=True)
