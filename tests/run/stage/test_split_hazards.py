"""Hazards of splitting a backward that torch's own functions for it do not handle: one test per hazard.

The model is a chain of four stages under zero bubble; each hazard is in its second stage. Gradients are those of the
unpartitioned model, and the test checks that the stage's backward is split.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_models import cross_entropy
from run_plans import captured_plan
from run_ranks import run_ranks, values
from run_replica_syncs import train_all, train_unpartitioned
from run_splits import Wrap, in_halves
from torch import Tensor, nn

from graphpipe.model import DagModule
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.schedule.schedulers.registry import build_schedule

SAMPLES = 8


class Pooled(nn.Module):
    """Scores the mean over positions. It uses only the shape of `ignored`."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 3)

    def forward(self, states: Tensor, ignored: Tensor) -> Tensor:
        assert ignored.shape[0] == states.shape[0]
        return self.score(states.mean(1))


def trained_in_halves(second: nn.Module, feeds: list[str], head_reads: str) -> DagModule:
    """Compare a step of first -> second -> third -> head with the unpartitioned model, and return the model."""
    torch.manual_seed(0)
    parts = {"first": nn.Linear(5, 6), "second": second, "third": nn.Linear(6, 6), "head": Pooled()}
    reads = {"first": ["x"], "second": feeds, "third": ["second"], "head": ["third", head_reads]}
    model = DagModule(parts, inputs=reads)
    inputs = {"x": torch.randn(SAMPLES, 4, 5)}
    if "tokens" in feeds:
        inputs["tokens"] = torch.randint(0, 7, (SAMPLES, 4))
    targets = torch.randint(0, 3, (SAMPLES,))
    stages = [([name], [number], 2) for number, name in enumerate(parts)]
    plan = in_halves(captured_plan(model, inputs, stages, SAMPLES), "zb-h1")
    assert build_schedule(plan).split_stages == {1, 2, 3}
    loss = cross_entropy(model(**inputs), targets)
    expected = torch.autograd.grad(loss, [*model.parameters()])
    pipeline = Pipeline(plan, model, cross_entropy, options=PipelineOptions(debug=True))
    assert pipeline.step(inputs, targets) == pytest.approx(loss.item(), rel=1e-6)
    found = pipeline.gradients()
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7, msg=name)
    assert pipeline.backwards() == {"second": "split", "third": "split", "head": "split"}
    return model


@pytest.mark.parametrize("view", [lambda m, x: m.a(x), lambda m, x: m.a(x).transpose(1, 2).transpose(1, 2)])
def test_1_an_output_may_be_a_view(view: Callable[..., Tensor]) -> None:
    """torch's `stage_backward_input` detaches outputs in place, which views do not allow: nn.Linear's on 3-D inputs."""
    layer = nn.Linear(6, 6)
    assert layer(torch.randn(2, 4, 6))._is_view()
    trained_in_halves(Wrap(view, a=layer), ["first"], "second")


def test_2_an_output_may_get_no_gradient() -> None:
    """The head does not compute with the value from the second stage, so that value gets no gradient."""
    trained_in_halves(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), ["first"], "second")


def test_3_parameters_that_no_received_value_reaches_get_gradients() -> None:
    """An embedding of the model's input: none of its inputs requires a gradient."""
    both = Wrap(lambda m, x, tokens: m.a(x) + m.e(tokens), a=nn.Linear(6, 6), e=nn.Embedding(7, 6))
    trained_in_halves(both, ["first", "tokens"], "second")


def test_4_hooks_fire_once_per_micro_batch_and_their_changes_count() -> None:
    """Of tensors and modules. Those of weights are refused (test_own_backwards), as is DDP (test_replica_sync)."""
    fired: list[str] = []

    def scaled(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad and type(hidden) is Tensor:  # not while it is captured
            hidden.register_hook(lambda gradient: gradient * 2)
        return torch.tanh(hidden)

    layer = nn.Linear(6, 6)
    layer.register_full_backward_hook(lambda *_: fired.append("module"))
    second = Wrap(scaled, a=layer)
    trained_in_halves(second, ["first"], "third")
    micro_batches = SAMPLES // 2
    # One more call is from the unpartitioned model, whose gradients are computed but not accumulated. Three are from
    # the first step, which compares gradients of two samples with those of each of them.
    assert fired.count("module") == micro_batches + 1 + 3


def test_5_shards_of_fsdp2_are_reduced_after_the_weight_halves(tmp_path: Path) -> None:
    """FSDP2's own hooks do not run in a split backward, so the runtime calls its reduction."""
    expected, halves = train_unpartitioned(), set[str]()
    for found in values(run_ranks(train_all, 4, tmp_path, "both", ["fsdp2"], ["zb-h1"], {}, seconds=100)):
        (label,) = found
        assert all(how == "split" for how in found[label]["backwards"].values())
        halves |= found[label]["backwards"].keys()
        assert found[label]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        for name, gradient in found[label]["gradients"].items():
            torch.testing.assert_close(gradient, expected["gradients"][name], rtol=1e-5, atol=1e-6, msg=name)
    assert halves == {"left+right", "head"}
