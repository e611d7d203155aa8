"""All forwards, then all backwards (Huang et al., GPipe, NeurIPS 2019).

    time ->
    stage 0   F0 F1 F2 F3                   B0 B0 B1 B1 B2 B2 B3 B3
    stage 1      F0 F1 F2 F3          B0 B0 B1 B1 B2 B2 B3 B3
    stage 2         F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3

Backwards go in the order of the forwards, not in reverse: so every schedule adds up a stage's gradients in the same
order, and gradients do not depend, not even in the last bit, on the schedule. Each stage holds the whole mini-batch.
"""

from graphpipe.plans import Plan
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, Task


def build(plan: Plan) -> Schedule:
    """Return the GPipe schedule of a plan; every stage needs the whole mini-batch in flight."""
    orders = [
        [Task(kind, stage, index) for kind in ("F", "B") for index in range(plan.micro_batches(stage))]
        for stage in range(len(plan.stages))
    ]
    return merge("gpipe", plan, orders)
