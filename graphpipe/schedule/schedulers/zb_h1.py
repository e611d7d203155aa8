"""Zero-bubble H1 on a graph of stages: 1F1B with the backward split, and later stages holding back weight gradients.

Below, stages 0 and 1 are one branch and stage 2 another; they join in stage 3. Every stage may hold three
micro-batches, the peak that 1F1B has at stage 0. A forward and each half of a backward take one column; 1F1B takes 24.

    time ->
    stage 0   F0 F1 F2       B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4    B5 B5
    stage 1      F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 F5 I4 W3    I5 W4 W5
    stage 2   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 B5 B5
    stage 3         F0 I0 F1 I1    F2 I2 W0 F3 I3 W1 F4 I4 W2 F5 I5 W3 W4 W5

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.1. Gradients travel back after the input half alone,
and the weight halves fill what were bubbles at the end: on a balanced chain of p stages the bubble shrinks from
(p-1)(F+I+W) to (p-1)(F+I-W). For that a stage holds back as many weight gradients as the 1F1B warm-up of its neediest
ancestor is longer than its own: on a chain every stage then holds as many micro-batches as the first one. Where its
`in_flight` allows fewer, it holds back fewer; `room.with_room` raises `in_flight` to the memory there is. Stages that
send no gradient, or have no weights, do whole backwards: nobody waits for their input half.
"""

from collections.abc import Sequence

from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.stage_work import StageWork, own_works
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, Task


def build(plan: Plan) -> Schedule:
    """Return the H1 schedule of a plan.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for the stages after it.
    """
    works = own_works(plan)
    backs = _held_back(plan, works)
    return merge("zb-h1", plan, [_order(stage, work, backs[stage]) for stage, work in enumerate(works)])


def _held_back(plan: Plan, works: Sequence[StageWork]) -> list[int]:
    # In samples down the graph, in whole micro-batches of each stage.
    most = [0] * len(works)
    backs: list[int] = []
    for stage, work in enumerate(works):
        size = plan.stages[stage].micro_batch
        most[stage] = max([work.warm_up * size] + [most[before] for before in plan.predecessors[stage]])
        backs.append(min(work.room, most[stage] // size) - work.warm_up)
    return backs


def _order(stage: int, work: StageWork, back: int) -> list[Task]:
    """Return the tasks of a stage that holds back so many weight gradients.

    1. Warm up as 1F1B does.
    2. Go one back and one forward in turn; before a forward, do the weight gradient that is due.
    3. Without forwards left, go on back, and do the rest of the weight gradients.
    """
    halves = ("I", "W") if work.split else ("B",)
    order = [Task("F", stage, index) for index in range(work.warm_up)]
    for index in range(work.count):
        order.append(Task(halves[0], stage, index))
        if work.split and index >= back:
            order.append(Task("W", stage, index - back))
        if index + work.warm_up < work.count:
            order.append(Task("F", stage, index + work.warm_up))
    if work.split:
        order += [Task("W", stage, index) for index in range(max(0, work.count - back), work.count)]
    return order
