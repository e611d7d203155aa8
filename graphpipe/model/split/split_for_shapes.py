"""A split model for inputs of other shapes, such as longer sequences: captured anew, and cut where it was cut before.

Glue holds sizes as constants (a mask of 16 by 16), so a stage cut out of one capture is right for its shapes alone. The
user's submodules, and so all parameters, are the same in every split.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from torch import fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.model.capture.capture import Captured, capture_again
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split import build_stages, capture_for
from graphpipe.plans.plan import Plan

Grouping = Mapping[str, tuple[str, ...]]
"""Names of the captured nodes of every operator."""


def grouping(module: nn.Module, plan: Plan) -> Grouping:
    """Return what `plan.graph`, which was captured from `module`, joins to operators.

    Raises:
        InvalidInput: as `split`.
    """
    nodes = capture_for(module, plan.graph).nodes
    return {op: tuple(node.name for node in group) for op, group in nodes.items()}


def split_for(module: nn.Module, plan: Plan, groups: Grouping, inputs: tuple[Input, ...]) -> tuple[ModuleStage, ...]:
    """Return one program per stage, as `split` does, for these inputs instead of those the plan was made with.

    Raises:
        InvalidInput: the model cannot be captured with them, or it computes something else then.
    """
    assert plan.graph.origin is not None
    captured = capture_again(module, inputs, plan.graph.origin, compare_modes=False)
    return build_stages(module, plan, _regrouped(captured, groups, inputs))


def rebind(program: ModuleStage, original: nn.Module, copied: nn.Module) -> ModuleStage:
    """Return a program of the user's submodules as one of their copies.

    Args:
        program: a stage for some shapes.
        original: the module of that stage for other shapes, of the user's submodules.
        copied: a copy of `original`.
    """
    memo: dict[int, object] = {}
    pairs = chain(
        zip(original.modules(), copied.modules(), strict=True),
        zip(original.parameters(), copied.parameters(), strict=True),
        zip(original.buffers(), copied.buffers(), strict=True),
    )
    for theirs, own in pairs:
        memo[id(theirs)] = own
    return replace(program, module=copy.deepcopy(program.module, memo))


def _regrouped(captured: Captured, groups: Grouping, inputs: tuple[Input, ...]) -> Captured:
    # What is tiny depends on the shapes, and so do operators: those of the plan hold.
    nodes: dict[str, fx.Node] = {node.name: node for group in captured.nodes.values() for node in group}
    known = {name for names in groups.values() for name in names}
    if odd := sorted(known ^ nodes.keys()):
        shapes = ", ".join(f"{each.name}{[*each.sample_shape]}" for each in inputs)
        there = "it has no" if odd[0] in known else "it has another"
        raise InvalidInput(
            f"with samples of {shapes} the model computes something else than the plan was made for: "
            f"{there} '{odd[0]}' then",
            where="inputs",
            remedy="Pad the samples to the shapes the plan was made with, or plan with these.",
        )
    return replace(captured, nodes={op: tuple(nodes[name] for name in names) for op, names in groups.items()})
