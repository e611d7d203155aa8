"""The loads that devices may have, as menus of a packing: of one stage each, or of several."""

from collections.abc import Sequence

import numpy as np

from graphpipe.planners.lower_bound.chains import Chain, chains
from graphpipe.planners.lower_bound.configuration_lp import Packing
from graphpipe.planners.lower_bound.knapsack import Menu
from graphpipe.planners.lower_bound.op_minima import Array, LeastSeconds
from graphpipe.planners.problem.partition import Problem

_LONGEST = 128
"""Operators of a chain; longer ones are cut, which only forgets that stages are unbroken there."""


def one_stage_each(problem: Problem, least: LeastSeconds) -> Packing:
    """Return the loads of devices that run one stage, and maybe stages of whole-batch operators and what follows.

    All operators of the stage have its degree, and are an unbroken stretch of every chain of the graph: a path from
    one of them to another does not leave a convex stage. Their weights fit the device, and beside them one smallest
    micro-batch of the operator that saves most.
    """
    found = _cut(chains(problem.graph, _classes(problem, least)))
    starts = np.cumsum([0, *(len(chain.ops) for chain in found)])
    loads: list[tuple[int, tuple[Menu, ...]]] = []
    for number, kind in enumerate(least.seconds):
        capacity = problem.cluster.types[kind].memory_bytes * (1 + 1e-6) + 1
        beside = [
            Menu(chain.copies, np.array([at]), np.array([at + 1]), np.ones(1), least.whole[kind][[op]])
            for chain, start in zip(found, starts, strict=False)
            for at, op in enumerate(chain.ops, start)
            if np.isfinite(least.whole[kind][op])
        ]
        for column in range(len(least.degrees)):
            stretches = [
                _stretches(least, kind, column, chain, int(start), capacity)
                for chain, start in zip(found, starts, strict=False)
            ]
            loads.append((number, (*stretches, *beside)))
    copies = np.concatenate([np.full(len(chain.ops), float(chain.copies)) for chain in found])
    return Packing(copies, tuple(loads), _devices(problem, least))


def any_stages(problem: Problem, least: LeastSeconds) -> Packing:
    """Return the loads of devices that may run any parts of any stages."""
    classes = _classes(problem, least)
    members: dict[object, list[int]] = {}
    for position, op in enumerate(problem.graph.ops):
        members.setdefault(classes[op.name], []).append(position)
    loads: list[tuple[int, tuple[Menu, ...]]] = []
    shares = 1 / np.array([*least.degrees, 1.0])
    for number, kind in enumerate(least.seconds):
        menus: list[Menu] = []
        for at, same in enumerate(members.values()):
            seconds = np.append(least.seconds[kind][same[0]], least.whole[kind][same[0]])
            able = np.isfinite(seconds)
            count = int(able.sum())
            menus.append(Menu(len(same), np.full(count, at), np.full(count, at + 1), shares[able], seconds[able]))
        loads.append((number, tuple(menus)))
    copies = np.array([float(len(same)) for same in members.values()])
    return Packing(copies, tuple(loads), _devices(problem, least))


def _classes(problem: Problem, least: LeastSeconds) -> dict[str, bytes]:
    rows = np.concatenate(
        [
            *least.seconds.values(),
            *(whole[:, None] for whole in least.whole.values()),
            least.state_bytes[:, None],
            least.saved_bytes,
        ],
        axis=1,
    )
    return {op.name: row.tobytes() for op, row in zip(problem.graph.ops, rows, strict=True)}


def _devices(problem: Problem, least: LeastSeconds) -> Array:
    return np.array([float(sum(device.type == kind for device in problem.cluster.devices)) for kind in least.seconds])


def _cut(found: Sequence[Chain]) -> list[Chain]:
    return [
        Chain(chain.ops[start : start + _LONGEST], chain.copies)
        for chain in found
        for start in range(0, len(chain.ops), _LONGEST)
    ]


def _stretches(least: LeastSeconds, kind: str, column: int, chain: Chain, start: int, capacity: float) -> Menu:
    ops = list(chain.ops)
    seconds = least.seconds[kind][ops, column]
    first, last = np.triu_indices(len(ops) + 1, 1)
    # Infinite seconds are counted apart: sums are differences here.
    able = np.isfinite(seconds)
    summed, state, missing = (
        np.concatenate(([0.0], np.cumsum(each)))
        for each in (np.where(able, seconds, 0.0), least.state_bytes[ops], ~able)
    )
    # Row i: the most that any of operators i to j saves.
    saved = np.maximum.accumulate(np.triu(np.tile(least.saved_bytes[ops, column], (len(ops), 1))), axis=1)
    held = state[last] - state[first] + saved[first, last - 1]
    fits = (missing[last] == missing[first]) & (held <= capacity)
    first, last = first[fits], last[fits]
    shares = np.full(len(first), 1 / least.degrees[column])
    # A difference of sums may exceed the sum by rounding.
    return Menu(chain.copies, start + first, start + last, shares, (summed[last] - summed[first]) * (1 - 1e-12))
