"""Decide by integer programming whether any partition reaches a bottleneck. For small cases, not for planning."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

import graphpipe as gp
from graphpipe.planners.lower_bound.op_minima import OpMinima
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.plans.estimates import bottleneck_seconds
from graphpipe.plans.verify import verify


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a partition within the time exists; None: not decided within the limit."""

    exists: bool | None
    parts: tuple[Part, ...] = ()


def partition_within(problem: Problem, seconds: float, limit_seconds: float, micro_batch: int | None = None) -> Answer:
    """Search a partition in which every stage takes at most `seconds` per mini-batch, one stage per device.

    x[v, s, k] is 1 where operator v is in stage s, of degree k; z[s, k] where stage s has that degree. Stages are
    numbered in topological order: an operator is in no earlier stage than what it reads, so stages are convex and
    their graph acyclic. Transfers and memory beyond `OpMinima` are left out, and so is the whole-batch tail: what
    does not exist, does not exist with them either.

    Args:
        problem: with equal devices.
        seconds: per mini-batch.
        limit_seconds: how long to look.
        micro_batch: of every stage; None: the mini-batch, at which every stage is fastest.
    """
    least = OpMinima.of(problem, None if micro_batch is None else [micro_batch])
    (each,) = least.seconds.values()
    tail = WholeBatchTail.of(problem.graph)
    ops = [n for n, op in enumerate(problem.graph.ops) if op.name not in tail.ops]
    stages, degrees = min(len(problem.cluster.devices), len(ops)), least.degrees
    allowed = [(v, s, k) for v in ops for s in range(stages) for k in range(len(degrees)) if each[v, k] <= seconds]
    x = {key: n for n, key in enumerate(allowed)}
    z = {(s, k): len(x) + s * len(degrees) + k for s in range(stages) for k in range(len(degrees))}
    rows = _Rows([], [], [], [], [])
    for v in ops:
        rows.add([(x[v, s, k], 1.0) for s, k in z if (v, s, k) in x], 1.0, 1.0)
    for s in range(stages):
        rows.add([(z[s, k], 1.0) for k in range(len(degrees))], 0.0, 1.0)
    for s, k in z:
        used = [(x[v, s, k], each[v, k] / seconds) for v in ops if (v, s, k) in x]
        rows.add([*used, (z[s, k], -1.0)], -np.inf, 0.0)
    rows.add([(column, float(degrees[k])) for (_, k), column in z.items()], 0.0, float(len(problem.cluster.devices)))
    for edge in problem.graph.edges:
        ends = problem.graph.index[edge.target], problem.graph.index[edge.source]
        for last in range(stages - 1 if {*ends} <= {*ops} else 0):
            terms = [
                (x[v, s, k], sign)
                for v, sign in zip(ends, (1.0, -1.0), strict=True)
                for s, k in z
                if s <= last and (v, s, k) in x
            ]
            rows.add(terms, -np.inf, 0.0)
    count = len(x) + len(z)
    found = milp(
        np.zeros(count),
        constraints=rows.constraint(count),
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        options={"time_limit": limit_seconds},
    )
    if found.status == 2:
        return Answer(exists=False)
    if found.x is None:
        return Answer(exists=None)
    chosen = [key for key, column in x.items() if found.x[column] > 0.5]
    return Answer(exists=True, parts=tuple(_parts(problem, chosen, degrees, micro_batch)))


def fastest_plan(problem: Problem, parts: tuple[Part, ...]) -> gp.Plan | None:
    """Return the verified plan of a partition with the fastest bottleneck; None if it does not fit in memory."""
    found: list[gp.Plan] = []
    for hosts in _hosts(problem, parts):
        tail = WholeBatchTail.of(problem.graph)
        whole = (*parts, tail.part(problem)) if tail.ops else parts
        plan = assemble(problem, whole, planner="integer programme", hosts=hosts)
        try:
            verify(plan)
        except gp.Infeasible:
            continue
        found.append(plan)
    return min(found, key=bottleneck_seconds, default=None)


def _hosts(problem: Problem, parts: tuple[Part, ...]) -> Iterator[dict[int, int]]:
    tail = WholeBatchTail.of(problem.graph)
    if not tail.ops or sum(part.degree for part in parts) < len(problem.cluster.devices):
        yield {}
    if tail.ops:
        yield from ({len(parts): host} for host in range(len(parts)))


def _parts(
    problem: Problem, chosen: list[tuple[int, int, int]], degrees: tuple[int, ...], micro_batch: int | None
) -> Iterator[Part]:
    index = problem.graph.index
    for stage in sorted({s for _, s, _ in chosen}):
        inside = {v: k for v, s, k in chosen if s == stage}
        ops = tuple(name for name in problem.graph.order if index[name] in inside)
        yield Part(ops, degrees[next(iter(inside.values()))], micro_batch or problem.batch_size)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Linear constraints under construction."""

    row: list[int]
    column: list[int]
    value: list[float]
    low: list[float]
    high: list[float]

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self.row.extend([len(self.low)] * len(terms))
        self.column.extend(column for column, _ in terms)
        self.value.extend(value for _, value in terms)
        self.low.append(low)
        self.high.append(high)

    def constraint(self, count: int) -> LinearConstraint:
        shape = (len(self.low), count)
        matrix = coo_array((self.value, (self.row, self.column)), shape=shape).tocsr()
        # scipy's annotations only allow scalar bounds.
        return LinearConstraint(matrix, self.low, self.high)  # pyright: ignore[reportArgumentType]
