"""The stages whose backward cannot be split into two halves, from a run of the stages on fake tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from graphpipe.graph import Input
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.function_caches import without_caches
from graphpipe.model.inputs import blank
from graphpipe.model.split.autograd_graph import AutogradGraph, autograd_graph, own_backward
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split import build_stages, capture_for
from graphpipe.model.torch_private import fake_mode, flatten, non_leaf_alias
from graphpipe.plans import Plan

SAMPLES = 2


def whole_backwards(plan: Plan, module: nn.Module, captured: Captured | None = None) -> dict[int, str]:
    """Return why backwards cannot be split (see `BackwardGraph.why_whole`), by stage, for the stages where they cannot.

    The loss is assumed to use every output of the model, and no parameter.

    Args:
        plan: for the model's graph.
        module: the model; nothing is computed with its weights.
        captured: the capture that the graph was made from; if None, the model is captured again.

    Raises:
        InvalidInput: the plan is for another model.
    """
    found: dict[int, str] = {}
    captured = capture_for(module, plan.graph) if captured is None else split_like(captured, plan.graph)
    assert captured.graph.fingerprint == plan.graph.fingerprint, "captured from another model"
    programs = build_stages(module, plan, captured)
    for stage, graph in enumerate(_graphs(programs, plan.graph.inputs)):
        if reason := graph.why_whole(own_backward):
            found[stage] = reason
    return found


def _graphs(programs: Sequence[ModuleStage], inputs: Sequence[Input]) -> Iterator[AutogradGraph]:
    mode = fake_mode()
    with mode:
        values = blank(inputs, SAMPLES)
    for program in programs:
        fake = replace(program, module=fake_copy(program.module, mode))
        wanted = {spec.name for specs in program.receives.values() for spec in specs if spec.requires_grad}
        leaves = {name: values[name].detach().requires_grad_() for name in wanted}
        entered = {name: non_leaf_alias(leaf) for name, leaf in leaves.items()}
        with without_caches(program.module), mode:
            sent, output = fake(values | entered)
        ends = [each for each in [*sent.values(), *flatten(output)[0]] if isinstance(each, Tensor)]
        roots = [get_gradient_edge(each) for each in ends if each.requires_grad]
        yield autograd_graph(roots, [get_gradient_edge(leaf).node for leaf in leaves.values()])
        with torch.no_grad():
            values |= {name: each.detach() for name, each in sent.items()}
