"""A plan runs although it counts the work of operators differently, as another version of torch may."""

from dataclasses import replace

import pytest
import torch
from stage_runs import make_plan, run_stages
from torch import Tensor, nn

from graphpipe.graph import Graph
from graphpipe.model.capture.capture import capture, capture_nodes
from graphpipe.model.capture.same_model import with_graph_of
from graphpipe.model.split.split import capture_for, split


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def counted_differently(graph: Graph) -> Graph:
    first, *others = graph.ops
    work = replace(first.work, flops_per_sample=first.work.flops_per_sample + 1.0, kernels=7)
    return replace(graph, ops=(replace(first, work=work), *others))


@pytest.mark.parametrize("at_hand", [False, True])
def test_a_plan_that_counts_work_differently_is_run_with_a_warning(at_hand: bool) -> None:
    module, x = layers(), torch.ones(2, 4)
    plan = make_plan(counted_differently(capture(module, x)), [["0"], ["1"]])
    with pytest.warns(UserWarning, match="the plan counts other work than this model has, as of operator '0'"):
        stages = split(module, plan, capture_nodes(module, {"input": x}) if at_hand else None)
    output = run_stages(stages, plan, {"input": x})
    assert isinstance(output, Tensor)
    assert torch.equal(output, module(x))


def test_the_capture_has_the_graph_of_the_plan() -> None:
    # Ranks read the capture from a file that is found by the fingerprint of the plan's graph.
    module = layers()
    graph = counted_differently(capture(module, torch.ones(2, 4)))
    with pytest.warns(UserWarning, match="other work"):
        assert capture_for(module, graph).graph is graph


@pytest.mark.filterwarnings("error")
def test_an_equal_graph_is_no_news() -> None:
    module = layers()
    captured = capture_nodes(module, {"input": torch.ones(2, 4)})
    assert with_graph_of(captured, capture(module, torch.ones(2, 4))) is captured
