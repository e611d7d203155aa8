"""A local search from random plans, which knows nothing of the planners: cuts of random topological orders."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphpipe.errors import GraphPipeError
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.simulator import step_seconds

_PATIENCE = 60
"""Changes in a row that do not help, after which it begins again."""


@dataclass(frozen=True, slots=True)
class _State:
    order: tuple[str, ...]
    """The operators in a topological order."""
    cuts: tuple[int, ...]
    """Where stages end in the order; the last one is its end."""
    devices: tuple[tuple[int, ...], ...]
    micro_batch: int


def restarts(problem: Problem, seconds: float, seed: int) -> float:
    """Return the seconds of the shortest 1F1B step found in so many processor seconds; infinite if nothing fits."""
    draw, best = random.Random(seed), float("inf")
    end = time.process_time() + seconds
    while time.process_time() < end:
        state = _random(problem, draw)
        found, patience = _seconds(problem, state), _PATIENCE
        while patience and time.process_time() < end:
            changed = _changed(problem, state, draw)
            again = _seconds(problem, changed)
            patience = _PATIENCE if again < found else patience - 1
            if again < found:
                state, found = changed, again
        best = min(best, found)
    return best


def _seconds(problem: Problem, state: _State) -> float:
    starts = (0, *state.cuts[:-1])
    stages = tuple(
        HandStage(ops=state.order[start:end], devices=devices, micro_batch=state.micro_batch)
        for start, end, devices in zip(starts, state.cuts, state.devices, strict=True)
    )
    try:
        return step_seconds(plan_by_hand(problem, HandPlan(stages=stages)))
    except GraphPipeError:  # It does not fit, or replicas have unequal micro-batches.
        return float("inf")


def _random(problem: Problem, draw: random.Random) -> _State:
    order, devices = _order(problem, draw), [*range(len(problem.cluster.devices))]
    if draw.random() < 0.3:
        draw.shuffle(devices)
    count = draw.randint(1, min(len(order), len(devices)))
    cuts = (*sorted(draw.sample(range(1, len(order)), count - 1)), len(order))
    ends = (*sorted(draw.sample(range(1, len(devices)), count - 1)), len(devices))
    groups = tuple(tuple(devices[start:end]) for start, end in zip((0, *ends[:-1]), ends, strict=True))
    sizes = [size for size in range(1, problem.batch_size + 1) if problem.batch_size % size == 0]
    return _State(order, cuts, groups, draw.choice(sizes))


def _order(problem: Problem, draw: random.Random) -> tuple[str, ...]:
    # Depth first as often as not, so that branches stay together.
    waiting = {name: set(problem.graph.predecessors[name]) for name in problem.graph.order}
    order: list[str] = []
    deep = draw.random() < 0.5
    while waiting:
        ready = [name for name, before in waiting.items() if not before]
        after = [name for name in ready if order and name in problem.graph.successors[order[-1]]]
        chosen = draw.choice(after if after and deep else ready)
        order.append(chosen)
        del waiting[chosen]
        for before in waiting.values():
            before.discard(chosen)
    return tuple(order)


def _changed(problem: Problem, state: _State, draw: random.Random) -> _State:
    return draw.choice([*_changes(problem, state, draw)])


def _changes(problem: Problem, state: _State, draw: random.Random) -> Iterator[_State]:
    # A larger or smaller micro-batch, a moved cut, a device that changes its stage, two that change places, stages
    # joined, and a stage cut in two.
    count = len(state.cuts)
    for size in (state.micro_batch * 2, state.micro_batch // 2):
        if size and problem.batch_size % size == 0:
            yield replace(state, micro_batch=size)
    if count == 1 and len(state.devices[0]) == 1:
        return
    at = draw.randrange(count)
    if at + 1 < count:
        moved = state.cuts[at] + draw.choice([-2, -1, 1, 2])
        if (state.cuts[at - 1] if at else 0) < moved < state.cuts[at + 1]:
            yield replace(state, cuts=(*state.cuts[:at], moved, *state.cuts[at + 1 :]))
        joined = (*state.devices[:at], state.devices[at] + state.devices[at + 1], *state.devices[at + 2 :])
        yield replace(state, cuts=(*state.cuts[:at], *state.cuts[at + 1 :]), devices=joined)
        other = draw.choice([each for each in range(count) if each != at])
        yield _with(state, at, other, state.devices[at][:-1], (*state.devices[other], state.devices[at][-1]))
        one, two = state.devices[at], state.devices[other]
        yield _with(state, at, other, (*one[:-1], two[0]), (one[-1], *two[1:]))
    start = state.cuts[at - 1] if at else 0
    if state.cuts[at] - start > 1 and len(state.devices[at]) > 1:
        middle = draw.randrange(start + 1, state.cuts[at])
        half = draw.randrange(1, len(state.devices[at]))
        parts = (state.devices[at][:half], state.devices[at][half:])
        yield replace(
            state,
            cuts=(*state.cuts[:at], middle, *state.cuts[at:]),
            devices=(*state.devices[:at], *parts, *state.devices[at + 1 :]),
        )


def _with(state: _State, at: int, other: int, one: tuple[int, ...], two: tuple[int, ...]) -> _State:
    devices = [*state.devices]
    devices[at], devices[other] = one, two
    return replace(state, devices=tuple(devices))
