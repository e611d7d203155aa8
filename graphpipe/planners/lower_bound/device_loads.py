"""The loads that one device can have, for the packings of the lower bound: one stage, or parts of several stages."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphpipe.costs import StageMemory
from graphpipe.graph import Graph
from graphpipe.planners.lower_bound.configuration_lp import Packing
from graphpipe.planners.lower_bound.knapsack import ChainLoads
from graphpipe.planners.lower_bound.op_minima import Array, OpMinima
from graphpipe.planners.problem.partition import Problem


@dataclass(frozen=True, slots=True)
class OperatorChain:
    """Equal paths, with operators of the same classes in the same order."""

    ops: tuple[int, ...]
    """Positions in `graph.ops` of the operators of one path."""
    copies: int
    """Number of equal paths."""


def chains(graph: Graph, classes: Mapping[str, Hashable]) -> list[OperatorChain]:
    """Return disjoint paths that cover every operator, equal paths grouped.

    Args:
        graph: the graph to cover.
        classes: the class of every operator; operators of one class cost the same.
    """
    paths: list[list[str]] = []
    ending: dict[str, list[str]] = {}
    for name in graph.order:
        # Extend the longest path that ends at a predecessor.
        before = [ending[other] for other in graph.predecessors[name] if other in ending]
        path = max(before, key=len, default=[])
        if path:
            del ending[path[-1]]
        else:
            paths.append(path)
        path.append(name)
        ending[name] = path
    known: dict[tuple[Hashable, ...], list[list[str]]] = {}
    for path in paths:
        known.setdefault(tuple(classes[name] for name in path), []).append(path)
    return [OperatorChain(tuple(graph.index[name] for name in same[0]), len(same)) for same in known.values()]


_LONGEST = 128
"""Most operators of a chain. Cutting longer chains only drops the condition that a stage is unbroken at the cut."""


def one_stage_each(problem: Problem, least: OpMinima) -> Packing:
    """Return the loads of devices that run one stage, and possibly operators of the whole-batch tail.

    All operators of the stage have its degree, and form an unbroken stretch of every chain of the graph, because a
    path between two of them does not leave a convex stage. The device holds their weights and the smallest micro-batch
    of the operator that saves the most.
    """
    cut = _cut(chains(problem.graph, _classes(problem, least)))
    starts = np.cumsum([0, *(len(chain.ops) for chain in cut)])
    loads: list[tuple[int, tuple[ChainLoads, ...]]] = []
    for number, kind in enumerate(least.seconds):
        capacity = problem.cluster.types[kind].memory_bytes * (1 + 1e-6) + 1
        beside = [
            ChainLoads(chain.copies, np.array([at]), np.array([at + 1]), np.ones(1), least.whole[kind][[op]])
            for chain, start in zip(cut, starts, strict=False)
            for at, op in enumerate(chain.ops, start)
            if np.isfinite(least.whole[kind][op])
        ]
        for column in range(len(least.degrees)):
            stretches = [
                _stretches(least, kind, column, chain, int(start), capacity)
                for chain, start in zip(cut, starts, strict=False)
            ]
            loads.append((number, (*stretches, *beside)))
    copies = np.concatenate([np.full(len(chain.ops), float(chain.copies)) for chain in cut])
    return Packing(copies, tuple(loads), _devices(problem, least))


def any_stages(problem: Problem, least: OpMinima) -> Packing:
    """Return the loads of devices that may run any parts of any stages."""
    classes = _classes(problem, least)
    members: dict[object, list[int]] = {}
    for position, op in enumerate(problem.graph.ops):
        members.setdefault(classes[op.name], []).append(position)
    loads: list[tuple[int, tuple[ChainLoads, ...]]] = []
    shares = 1 / np.array([*least.degrees, 1.0])
    for number, kind in enumerate(least.seconds):
        device_loads: list[ChainLoads] = []
        for at, same in enumerate(members.values()):
            seconds = np.append(least.seconds[kind][same[0]], least.whole[kind][same[0]])
            able = np.isfinite(seconds)
            count = int(able.sum())
            device_loads.append(
                ChainLoads(len(same), np.full(count, at), np.full(count, at + 1), shares[able], seconds[able])
            )
        loads.append((number, tuple(device_loads)))
    copies = np.array([float(len(same)) for same in members.values()])
    return Packing(copies, tuple(loads), _devices(problem, least))


def _classes(problem: Problem, least: OpMinima) -> dict[str, bytes]:
    rows = np.concatenate(
        [
            *least.seconds.values(),
            *(whole[:, None] for whole in least.whole.values()),
            least.state_bytes,
            least.saved_bytes[:, None],
        ],
        axis=1,
    )
    return {op.name: row.tobytes() for op, row in zip(problem.graph.ops, rows, strict=True)}


def _devices(problem: Problem, least: OpMinima) -> Array:
    return np.array([float(sum(device.type == kind for device in problem.cluster.devices)) for kind in least.seconds])


def _cut(whole: Sequence[OperatorChain]) -> list[OperatorChain]:
    return [
        OperatorChain(chain.ops[start : start + _LONGEST], chain.copies)
        for chain in whole
        for start in range(0, len(chain.ops), _LONGEST)
    ]


def _stretches(
    least: OpMinima, kind: str, column: int, chain: OperatorChain, start: int, capacity: float
) -> ChainLoads:
    ops = list(chain.ops)
    seconds = least.seconds[kind][ops, column]
    first, last = np.triu_indices(len(ops) + 1, 1)
    # Infinite seconds are counted separately, because the sums are computed as differences.
    able = np.isfinite(seconds)
    summed, state, missing = (
        np.concatenate(([0.0], np.cumsum(figure)))
        for figure in (np.where(able, seconds, 0.0), least.state_bytes[ops, column], ~able)
    )
    # Entry [i, j]: the most that any of operators i to j saves.
    saved = np.maximum.accumulate(np.triu(np.tile(least.saved_bytes[ops], (len(ops), 1))), axis=1)
    memory = StageMemory(state=state[last] - state[first], saved=saved[first, last - 1])
    fits = (missing[last] == missing[first]) & (memory.total(float(least.samples[column])) <= capacity)
    first, last = first[fits], last[fits]
    shares = np.full(len(first), 1 / least.degrees[column])
    # A difference of sums may exceed the sum by rounding.
    return ChainLoads(chain.copies, start + first, start + last, shares, (summed[last] - summed[first]) * (1 - 1e-12))
