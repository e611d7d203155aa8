"""The submodules of the user's model that each stage holds, by their names."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from graphpipe.errors import InvalidInput
from graphpipe.graph import Op
from graphpipe.plans import Plan

CUT_BETWEEN = (
    "Write the stages by hand (`graphpipe show` lists the operators, `graphpipe plan --stages`), or run this plan with "
    "`graphpipe train`."
)
_NOT_CALLED = ("glue", "output")
"""Kinds of operators that the model computes in its own forward."""


def top_level(path: str) -> str:
    """Return the child of the model that a submodule is in, or its entry if the child is a list: `layers.3`."""
    parts = path.split(".")
    return ".".join(parts[:2]) if not parts[0].isdigit() and parts[1:2] and parts[1].isdigit() else parts[0]


def layer(path: str) -> str:
    """Return the entry of the outermost list that a submodule is in: `model.layers.3`. Elsewhere, the path itself."""
    parts = path.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else path


def stage_modules(plan: Plan, stages: Sequence[int], unit: Callable[[str], str]) -> list[list[str]]:
    """Return for each stage the units that it holds, in order of execution.

    Args:
        plan: the plan.
        stages: positions in `Plan.stages`.
        unit: the unit that a submodule is in, by its path: `top_level` or `layer`.

    Raises:
        InvalidInput: a unit is cut between two stages, or a stage holds no submodule. The message names them.
    """
    ops = {op.name: op for op in plan.graph.ops}
    place = {name: number for number, name in enumerate(ops)}
    units_by_stage: list[list[str]] = []
    holder: dict[str, int] = {}
    for position in stages:
        stage = plan.stages[position]
        held = (ops[name] for name in sorted(stage.ops, key=place.__getitem__))
        units = list(dict.fromkeys(unit(path) for op in held for path in _paths(op, plan)))
        for path in units:
            if holder.setdefault(path, position) != position:
                _refuse_cut(plan, holder[path], position, path)
        if not units:
            what = f"stage {stage.name} holds no submodule, only {', '.join(stage.ops[:3])}"
            raise InvalidInput(what, where="plan", remedy=CUT_BETWEEN)
        units_by_stage.append(units)
    return units_by_stage


def first_calls(plan: Plan, stages: Sequence[int]) -> list[str]:
    """Return for each stage but the first the submodule whose call begins it.

    Raises:
        InvalidInput: a stage does not begin with a call of a submodule, or the model does not compute the stages one
            after the other.
    """
    place = {op.name: number for number, op in enumerate(plan.graph.ops)}
    ops = {op.name: op for op in plan.graph.ops}
    in_order = [sorted(plan.stages[position].ops, key=place.__getitem__) for position in stages]
    for (before, after), (one, other) in zip(pairwise(stages), pairwise(in_order), strict=True):
        edge = f"edge {plan.stages[before].name} -> {plan.stages[after].name}"
        if place[one[-1]] > place[other[0]]:
            what = (
                f"{edge}: the model computes '{other[0]}' before '{one[-1]}', and the format cuts in order of execution"
            )
            raise InvalidInput(what, where="plan", remedy=CUT_BETWEEN)
        if ops[other[0]].kind in _NOT_CALLED:
            what = f"{edge} cuts inside a forward: '{other[0]}' is computed between the calls of submodules"
            raise InvalidInput(what, where="plan", remedy=CUT_BETWEEN)
    return [names[0] for names in in_order[1:]]


def check_parameters(plan: Plan, *, may_tie: bool = False) -> None:
    """Check that every parameter lies whole in one stage.

    Args:
        plan: the plan.
        may_tie: whether the other tool sums the gradients of parameters that stages share.

    Raises:
        InvalidInput: an operator is split into parts, or stages share parameters.
    """
    if plan.graph.origin is not None and plan.graph.origin.split_ops:
        split = plan.graph.origin.split_ops[0]
        what = f"operator '{split.op}' is split into parts, and other tools have no such parts"
        raise InvalidInput(what, where="plan", remedy="Plan again without `--split`.")
    if plan.tied_gradients and not may_tie:
        tied = plan.tied_gradients[0]
        names = " and ".join(plan.stages[stage].name for stage in tied.stages)
        what = f"stages {names} share '{tied.parameters[0]}', and the other tool does not sum its gradients"
        raise InvalidInput(what, where="plan", remedy="Untie the parameter, or run this plan with `graphpipe train`.")


def _paths(op: Op, plan: Plan) -> list[str]:
    # The submodules that an operator calls, as far as their parameters show.
    tied = {name for gradients in plan.tied_gradients for name in gradients.parameters}
    owned = [name.rpartition(".")[0] for name in op.parameters if name not in tied]
    called = [] if op.kind in _NOT_CALLED or any(_inside(path, op.name) for path in owned) else [op.name]
    return [path for path in [*owned, *called] if path]


def _inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _refuse_cut(plan: Plan, before: int, after: int, unit: str) -> None:
    names = f"{plan.stages[before].name} -> {plan.stages[after].name}"
    what = f"edge {names} cuts inside the forward of '{unit}', which both stages hold parts of"
    raise InvalidInput(what, where="plan", remedy=CUT_BETWEEN)
