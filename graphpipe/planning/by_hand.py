"""Plans written by hand, in Python or as a short JSON file. They list stages, devices and micro-batches only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.costs import Recompute, State
from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document
from graphpipe.graph import Graph
from graphpipe.planners.problem.fitted_layouts import fitted_layouts
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage
from graphpipe.plans.verify import verify
from graphpipe.units import format_bytes
from graphpipe.user_frames import warn_user


@dataclass(frozen=True, slots=True, kw_only=True)
class HandStage:
    """One stage as a person writes it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    ops: tuple[str, ...]
    """Operator names; `*` matches anything, as in `image.*`."""
    devices: tuple[int, ...]
    """Positions in the cluster's devices, replica by replica."""
    micro_batch: int
    name: str = ""
    in_flight: int | None = None
    """Samples in flight; None takes the number that the schedule needs."""
    burst: int = 1
    recompute: Recompute = "none"
    """`none`, `full`, or names of operators or submodules. With `*`, as in `layers.*`, each match is recomputed
    separately."""
    offload: tuple[str, ...] = ()
    """Names of operators or submodules whose saved tensors go to the memory of the node; `*` matches anything."""
    offload_to: tuple[int, ...] = ()
    """For each device, the neighbour to whose memory they go instead."""
    backward: Literal["auto", "whole"] = "auto"
    """`whole`: the backward is never split, whatever the schedule."""
    state: State = "whole"
    """What the replicas shard: `whole`, `optimizer` (ZeRO-1) or `all` (FSDP2)."""
    tensor: int = 1
    """How many of the devices, one after the other, share each replica (tensor parallelism)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandPlan:
    """A file of stages: `{"graphpipe": "stages", "schema_version": 1, "schedule": "1f1b", "stages": [...]}`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    stages: tuple[HandStage, ...]
    schedule: str = "1f1b"


def load_hand_plan(path: str | Path) -> HandPlan:
    """Read a file of stages.

    Raises:
        InvalidInput: the file is unreadable or of another kind or version, or a field is unknown or missing.
    """
    return read_document(path, "stages", lambda body: from_body(HandPlan, body, str(path)))


def plan_by_hand(problem: Problem, hand: HandPlan) -> Plan:
    """Return the verified plan of hand-written stages, in any order.

    Raises:
        InvalidInput: a pattern matches no operator, or the plan violates a constraint.
        Infeasible: a stage does not fit in memory.
    """
    chosen = [(stage, _matching(problem.graph, stage)) for stage in hand.stages]
    _check_cover(problem.graph, chosen)
    chosen = _in_order(problem.graph, chosen)
    parts = [
        Part(
            ops,
            max(1, len(stage.devices) // max(1, stage.tensor)),
            stage.micro_batch,
            stage.burst,
            _recomputed(stage, ops),
        )
        for stage, ops in chosen
    ]
    _check_sizes(problem, chosen)
    devices = [stage.devices for stage, _ in chosen]
    drawn = assemble(problem, parts, planner="hand", schedule=hand.schedule, devices=devices)
    pairs = zip(drawn.stages, chosen, strict=True)
    stages = tuple(_written(drafted, stage, ops) for drafted, (stage, ops) in pairs)
    ranks = {op: max(1, stage.tensor) for stage in stages for op in stage.ops}
    plan = replace(drawn, stages=stages, graph=fitted_layouts(problem.graph, ranks))
    verify(plan)
    _warn_of_no_use(plan)
    return plan


def _warn_of_no_use(plan: Plan) -> None:
    for stage in plan.stages if plan.trains else ():
        named = stage.offload or not isinstance(stage.recompute, str)
        with_it, without = (
            stage_memory(plan.cost_model, each).total(stage.in_flight / stage.degree) for each in (stage, stage.keeping)
        )
        if named and with_it >= without:
            more, less = format_bytes(with_it), format_bytes(without)
            warn_user(
                f"stage '{stage.name}' needs {more} with what it recomputes or offloads, and "
                f"{less if less != more else 'as much'} without: every name, also of a pattern, keeps its inputs and "
                "what others read. Name a submodule that holds several of these operators."
            )


def _written(drafted: Stage, stage: HandStage, ops: tuple[str, ...]) -> Stage:
    return replace(
        drafted,
        name=stage.name or drafted.name,
        in_flight=drafted.in_flight if stage.in_flight is None else stage.in_flight,
        offload=_expanded(stage, ops, "offload", stage.offload),
        offload_to=stage.offload_to,
        backward=stage.backward,
        state=stage.state,
        tensor=stage.tensor,
    )


def _matching(graph: Graph, stage: HandStage) -> tuple[str, ...]:
    """Return the operators that a stage names, in topological order."""
    for pattern in stage.ops:
        if not any(fnmatchcase(name, pattern) for name in graph.order):
            raise InvalidInput(
                f"'{pattern}' matches no operator of '{graph.name}'",
                where=f"stage '{stage.name}'" if stage.name else "stages",
                remedy=nearest(pattern, list(graph.order)) if len(graph.order) < 40 else "",
            )
    return tuple(name for name in graph.order if any(fnmatchcase(name, pattern) for pattern in stage.ops))


def _recomputed(stage: HandStage, ops: tuple[str, ...]) -> Recompute:
    """Return what a stage recomputes, with every pattern replaced by the names it matches."""
    if isinstance(stage.recompute, str):
        return stage.recompute
    return _expanded(stage, ops, "recompute", stage.recompute)


def _expanded(stage: HandStage, ops: tuple[str, ...], field: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    chosen: list[str] = []
    for pattern in patterns:
        matching = [name for name in ops if fnmatchcase(name, pattern)] if "*" in pattern else [pattern]
        if not matching:
            where = f"stage '{stage.name or ops[0]}', {field}"
            raise InvalidInput(f"'{pattern}' matches no operator of the stage", where=where)
        chosen += matching
    return tuple(dict.fromkeys(chosen))


def _in_order(
    graph: Graph, chosen: Sequence[tuple[HandStage, tuple[str, ...]]]
) -> list[tuple[HandStage, tuple[str, ...]]]:
    """Return the stages in a topological order."""
    stage_of = {name: at for at, (_, ops) in enumerate(chosen) for name in ops}
    sorter = TopologicalSorter({at: set[int]() for at in range(len(chosen))})
    for edge in graph.edges:
        if stage_of[edge.source] != stage_of[edge.target]:
            sorter.add(stage_of[edge.target], stage_of[edge.source])
    try:
        return [chosen[at] for at in sorter.static_order()]
    except CycleError as error:
        names = " -> ".join(f"'{chosen[at][0].name or at}'" for at in error.args[1])
        raise InvalidInput(f"the stages form a cycle: {names}", where="stages") from None


def _check_cover(graph: Graph, chosen: Sequence[tuple[HandStage, tuple[str, ...]]]) -> None:
    count: dict[str, int] = dict.fromkeys(graph.order, 0)
    for at, (stage, ops) in enumerate(chosen):
        if not ops:
            where = f"stage '{stage.name}'" if stage.name else f"stages, number {at}"
            raise InvalidInput("has no operators", where=where, remedy="Leave the stage out, or give it some.")
        for name in ops:
            count[name] += 1
    for name, times in count.items():
        if times != 1:
            raise InvalidInput(f"operator '{name}' is in {times} stages, must be in exactly one", where="stages")


def _check_sizes(problem: Problem, chosen: Sequence[tuple[HandStage, tuple[str, ...]]]) -> None:
    for stage, ops in chosen:
        where = f"stage '{stage.name or ops[0]}'"
        if not 1 <= stage.micro_batch <= problem.batch_size:
            raise InvalidInput(
                f"micro_batch is {stage.micro_batch}, must be 1 to batch {problem.batch_size}", where=where
            )
        if stage.burst < 1:
            raise InvalidInput(f"burst is {stage.burst}, must be at least 1", where=where)
