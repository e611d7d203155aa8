"""Zero-bubble H1 on a graph of stages: 1F1B with a split backward, where later stages delay weight gradients.

In the drawing, stages 0 and 1 are one branch and stage 2 is another. They join in stage 3. Every stage may keep three
micro-batches in flight, the peak of 1F1B at stage 0. A forward and each half of a backward take one column. 1F1B takes
24 columns.

    time ->
    stage 0   F0 F1 F2       B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 B4 B4    B5 B5
    stage 1      F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 F5 I4 W3    I5 W4 W5
    stage 2   F0 F1       B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 B5 B5
    stage 3         F0 I0 F1 I1    F2 I2 W0 F3 I3 W1 F4 I4 W2 F5 I5 W3 W4 W5

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.1. A gradient travels back after the input half, and
the weight halves fill the bubbles at the end. On a balanced chain of p stages the bubble shrinks from (p-1)(F+I+W) to
(p-1)(F+I-W).

A stage delays d weight gradients, where d is the longest 1F1B warm-up among its ancestors minus its own. So on a chain
every stage keeps as many micro-batches in flight as the first one. If `in_flight` allows fewer, the stage delays fewer.
`planners.raise_in_flight.with_room` raises `in_flight` as far as memory allows. Stages that send no gradient, or have
no weights, do whole backwards, because no stage waits for their input half.
"""

from collections.abc import Sequence

from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.stage_work import StageWork, work_of_stages
from graphpipe.schedule.merge import merge
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler

NAME = "zb-h1"


def build(plan: Plan) -> Schedule:
    """Return the H1 schedule of a plan.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for the stages after it.
    """
    works = work_of_stages(plan)
    delays = _delays(plan, works)
    return merge(NAME, plan, [_order(stage, work, delays[stage]) for stage, work in enumerate(works)])


def _delays(plan: Plan, works: Sequence[StageWork]) -> list[int]:
    # The longest warm-up is compared in samples, because stages differ in micro-batch size.
    most = [0] * len(works)
    delays: list[int] = []
    for stage, work in enumerate(works):
        size = plan.stages[stage].micro_batch
        most[stage] = max([work.warm_up * size] + [most[before] for before in plan.predecessors[stage]])
        delays.append(min(work.room, most[stage] // size) - work.warm_up)
    return delays


def _order(stage: int, work: StageWork, delay: int) -> list[StageTask]:
    """Return the tasks of a stage that delays so many weight gradients.

    1. Warm up as 1F1B does.
    2. Do one backward and one forward in turn. Before a forward, do the weight gradient that is due.
    3. When no forward is left, do the remaining backwards, then the remaining weight gradients.
    """
    halves = ("I", "W") if work.split else ("B",)
    order = [StageTask("F", stage, index) for index in range(work.warm_up)]
    for index in range(work.count):
        order.append(StageTask(halves[0], stage, index))
        if work.split and index >= delay:
            order.append(StageTask("W", stage, index - delay))
        if index + work.warm_up < work.count:
            order.append(StageTask("F", stage, index + work.warm_up))
    if work.split:
        order += [StageTask("W", stage, index) for index in range(max(0, work.count - delay), work.count)]
    return order


SCHEDULER = Scheduler(
    name=NAME, build=build, splits_backward=True, uses_spare_memory=True, tried_by_auto=True, endless=True
)
