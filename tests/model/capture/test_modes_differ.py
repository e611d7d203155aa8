"""Models whose forward returns more in training than in evaluation, or computes other things there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import capture, capture_nodes
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.run import Pipeline, PipelineOptions


def layer(inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh())


class Heads(nn.Module):
    """Deep supervision: in training a head reads every layer, in evaluation only the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        found: list[Tensor] = []
        for each, head in zip(self.layers, self.heads, strict=True):
            x = each(x)
            found += [head(x)] if self.training else []
        return {"main": found[-1], "others": found[:-1]} if self.training else self.heads[-1](x)


class Scores(nn.Module):
    """Returns probabilities in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for each in self.layers:
            x = each(x)
        return x if self.training else x.softmax(-1)


class Wrapped(nn.Module):
    """The model whose modes differ is a submodule, with all of the layers in it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x))


def total(output: Any, targets: object) -> Tensor:
    del targets
    found = [output] if isinstance(output, Tensor) else [output["main"], *output["others"]]
    return torch.stack([each.square().mean() for each in found]).sum()


def cut_everywhere(graph: Graph) -> gp.Plan:
    cluster = gp.Cluster.preset(f"local:{len(graph.ops)}")
    stages = [gp.HandStage(ops=(op.name,), devices=(at,), micro_batch=2) for at, op in enumerate(graph.ops)]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=4, stages=stages)


def assert_trains_as_plain(pipeline: Pipeline, module: nn.Module, x: Tensor) -> None:
    expected = total(module(x), None)
    expected.backward()
    plain = {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}
    module.zero_grad()
    assert pipeline.step(x) == pytest.approx(expected.item(), rel=1e-6)
    found = pipeline.gradients()
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("from_file", [False, True])
def test_the_outputs_of_auxiliary_heads_are_left_out_in_evaluation(tmp_path: Any, from_file: bool) -> None:
    torch.manual_seed(0)
    module, x = Heads(), torch.randn(4, 6)
    held = capture_nodes(module, x)
    assert len(held.graph.ops) >= 6, "the layers and the heads come apart"
    plan = cut_everywhere(held.graph)
    if from_file:
        assert save_capture(held, tmp_path / "capture.json")
        held = load_capture(tmp_path / "capture.json", held.graph)
    # Without a capture at hand, a rank captures the model again.
    with Pipeline(plan, module, total, options=PipelineOptions(captured=held if from_file else None)) as pipeline:
        assert_trains_as_plain(pipeline, module, x)
        _, outputs = pipeline.evaluate(x)
        torch.testing.assert_close(outputs, module.eval()(x))
        assert pipeline.step(x) > 0  # an evaluation leaves the modes as they were


def test_a_model_that_computes_other_things_in_evaluation_only_trains() -> None:
    torch.manual_seed(0)
    module, x = Scores(), torch.randn(4, 6)
    graph = capture(module, x)
    assert len(graph.ops) >= 3
    with Pipeline(cut_everywhere(graph), module, total) as pipeline:
        assert_trains_as_plain(pipeline, module, x)
        with pytest.raises(InvalidInput, match=r"other things in evaluation .* Call pipeline.sync_model\(\)"):
            pipeline.evaluate(x)
        pipeline.sync_model()  # the remedy
        assert module.eval()(x).sum().item() == pytest.approx(4)
        module.train()
        assert pipeline.step(x) > 0


class Doubling(nn.Module):
    """Computes something else in evaluation, and has a layer that another block has too."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared, self.own = shared, layer()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.own(self.shared(x))
        return 2 * hidden if self.training else hidden


def test_the_modes_of_blocks_that_share_a_layer_differ() -> None:
    # While torch traces such a model, forwards run on stand-ins for its modules. Their modes were not seen, so that
    # stages computed in evaluation as in training.
    shared = layer()
    model = nn.Sequential(Doubling(shared), Doubling(shared), nn.Linear(6, 2))
    captured = capture_nodes(model, torch.randn(4, 6))
    assert captured.graph.origin is not None
    assert captured.graph.origin.modes_differ
    with Pipeline(cut_everywhere(captured.graph), model, total, options=PipelineOptions(captured=captured)) as pipeline:
        assert_trains_as_plain(pipeline, model, torch.randn(4, 6))
        with pytest.raises(InvalidInput, match="computes other things in evaluation than in training"):
            pipeline.evaluate(torch.randn(4, 6))


def test_a_submodule_with_most_parameters_does_not_become_one_operator() -> None:
    x = torch.randn(4, 6)
    assert len(capture(Wrapped(Scores()), x).ops) >= 4
    small = nn.Sequential(layer(), layer(), layer(), Scores(), *(nn.Linear(6, 6) for _ in range(4)))
    assert "3" in [op.name for op in capture(small, x).ops], "it stays whole, and is evaluated too"
