"""Synchronous 1F1B on a graph of stages: warm-up forwards, then one backward and one forward in turn, then the rest.

Jeon et al., GraphPipe (ASPLOS 2025), section 6, Algorithm 2. Stages 0 and 1 are two branches that join in stage 2: they
are equally deep, so both warm up with two micro-batches and run at the same time. A chain of the three would warm up
with three.

    time ->
    stage 0   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3
    stage 1   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3
    stage 2      F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3

A backward goes as early as it can: it frees the most memory and lets the stages before go on.
"""

from graphpipe.plans import Plan
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.schedulers import kfkb


def build(plan: Plan) -> Schedule:
    """Return the 1F1B schedule of a plan: kFkB with k = 1 at every stage.

    Raises:
        InvalidInput: a stage's in_flight samples do not hold one micro-batch, or are too few for the stages after it.
    """
    return merge("1f1b", plan, [kfkb.order(plan, stage, burst=1) for stage in range(len(plan.stages))])
