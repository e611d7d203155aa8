"""Interleaved 1F1B: a device that hosts several stages takes turns between them.

Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM (SC 2021), section
2.2.2. In the drawing, device 0 hosts stages 0 and 2 of a chain, and device 1 hosts stages 1 and 3. Capital letters are
tasks of a device's first stage, small letters those of its second. With p devices, v stages on each and m
micro-batches, the bubble is (p - 1) / (m v) of the work. It shrinks with v, because devices wait for shorter tasks at
both ends.

    time ->
    device 0   F0 F1 f0 f1 F2    b0 b0 F3 b1 b1 f2 B0 B0 f3 B1 B1    b2 b2    b3 b3 B2 B2 B3 B3
    device 1      F0 F1 f0 b0 b0 f1 b1 b1 F2 B0 B0 F3 B1 B1 f2 b2 b2 f3 b3 b3 B2 B2 B3 B3

The order of a device has three steps. The paper gives them for a chain in which every device hosts v stages. Here, the
distance of two stages is the difference of the samples that 1F1B keeps in flight at them (Algorithm 2 of GraphPipe), so
that they apply to any graph.

1. Forwards go in rounds. A round is as many samples as the first stage on the device is ahead of the next one. Within a
   round, the first stage does its micro-batches, then the next stage. Backwards go in rounds of the same length, and
   begin with the last stage.
2. The warm-up is as many forwards as come before the first one of the last stage, and then two for every micro-batch
   that this stage has in flight. A device with one stage warms up as in 1F1B.
3. Then one backward and one forward take turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from math import inf

from graphpipe.plans import Plan
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.schedule.list_scheduling.plan_work import hosted_stages, most_held, work_of_plan
from graphpipe.schedule.list_scheduling.replay import replay
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import one_f_one_b

NAME = "interleaved"


def build(plan: Plan) -> Schedule:
    """Return the interleaved schedule of a plan, or 1F1B where that is shorter.

    The interleaved order needs more samples in flight than 1F1B. The devices follow 1F1B if the plan allows fewer, if
    each device hosts one stage, or if the devices would wait for each other forever.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for 1F1B.
    """
    ahead = _ahead(plan)
    lean = (replace(stage, in_flight=min(stage.in_flight, n)) for stage, n in zip(plan.stages, ahead, strict=True))
    plain = one_f_one_b.build(replace(plan, stages=tuple(lean)))
    if (in_turn := build_in_turn(plan)) is None:
        return replace(plain, name=NAME)
    works = work_of_plan(plan)
    timed, known = replay(works, in_turn), replay(works, plain)
    shorter = timed is not None and (known is None or timed.seconds <= known.seconds)
    return in_turn if shorter else replace(plain, name=NAME)


def build_in_turn(plan: Plan) -> Schedule | None:
    """Return the interleaved order, in which devices might wait for each other forever.

    None if each device hosts one stage, or if the plan allows too few samples in flight.
    """
    if not plan.shares_devices:
        return None
    orders = _orders(plan)
    held = most_held(plan, orders.values())
    if any(most > stage.in_flight for most, stage in zip(held, plan.stages, strict=True)):
        return None
    return _schedule(plan, orders)


def quick_seconds(plan: Plan) -> float:
    """Return about the seconds of the interleaved order; infinite if devices would wait for each other forever.

    All replicas of a stage count as the slowest one.
    """
    timed = replay(work_of_plan(plan), _schedule(plan, _orders(plan)))
    return inf if timed is None else timed.seconds


def in_flight(plan: Plan) -> tuple[int, ...]:
    """Return the samples in flight of every stage in the interleaved order, and at least those of 1F1B."""
    needed = tuple(stage.in_flight for stage in plan.stages)
    if not plan.shares_devices:
        return needed
    return tuple(map(max, needed, most_held(plan, _orders(plan).values())))


def _ahead(plan: Plan) -> tuple[int, ...]:
    """Return the samples that 1F1B keeps in flight at every stage of an endless mini-batch."""
    sizes = [stage.micro_batch for stage in plan.stages]
    return in_flight_samples(sum(sizes) * len(sizes), sizes, [1] * len(sizes), plan.successors)


def _orders(plan: Plan) -> dict[tuple[int, ...], tuple[StageTask, ...]]:
    """Return the order of a device by the stages that it hosts."""
    ahead = _ahead(plan)
    return {stages: _order(plan, stages, ahead) for stages in dict.fromkeys(hosted_stages(plan).values())}


def _schedule(plan: Plan, orders: Mapping[tuple[int, ...], tuple[StageTask, ...]]) -> Schedule:
    hosted = hosted_stages(plan)
    devices = [orders[hosted[at]] if at in hosted else () for at in range(len(plan.cluster.devices))]
    return Schedule(name=NAME, devices=tuple(devices))


def _order(plan: Plan, hosted: Sequence[int], ahead: Sequence[int]) -> tuple[StageTask, ...]:
    gap = min((ahead[a] - ahead[b] for a, b in pairwise(hosted) if ahead[a] > ahead[b]), default=plan.batch_size)
    length = -(-plan.batch_size // max(1, plan.batch_size // gap))  # rounds of about equal length
    last, size = hosted[-1], plan.stages[hosted[-1]].micro_batch
    # The forwards after the first one of the last stage that warm up: two for every micro-batch in flight.
    more = (1 if len(hosted) == 1 else 2) * (-(-ahead[last] // size) - 1)
    sizes = tuple((stage, plan.stages[stage].micro_batch) for stage in hosted)
    return _in_turns(plan.batch_size, sizes, length, more)


@lru_cache(maxsize=256)  # A plan's samples in flight and its schedule follow from the same orders.
def _in_turns(batch_size: int, sizes: tuple[tuple[int, int], ...], length: int, more: int) -> tuple[StageTask, ...]:
    # Step 1: the order of all forwards, and of all backwards.
    forwards, backwards = list[StageTask](), list[StageTask]()
    rounds = range(-(-batch_size // length))
    for turn in rounds:
        for stage, size in sizes:
            forwards += [StageTask("F", stage, n) for n in _of_round(turn, length, size, batch_size)]
        for stage, size in reversed(sizes):
            backwards += [StageTask("B", stage, n) for n in _of_round(turn, length, size, batch_size)]
    # Step 2: the warm-up.
    warm_up = forwards.index(StageTask("F", sizes[-1][0], 0)) + 1 + more
    # Step 3: one backward and one forward in turn.
    rest = zip_longest(backwards, forwards[warm_up:])
    return (*forwards[:warm_up], *(task for pair in rest for task in pair if task is not None))


def _of_round(turn: int, length: int, size: int, batch_size: int) -> range:
    """Return the micro-batches of this size that begin in a round."""
    stop = min(batch_size, (turn + 1) * length)
    return range(-(-turn * length // size), -(-stop // size))


SCHEDULER = Scheduler(name=NAME, build=build, in_flight=in_flight)
