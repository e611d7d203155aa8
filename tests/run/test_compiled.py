"""Compiled stages train as eager ones, also where a schedule splits their backwards."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput, NonFiniteLoss
from graphpipe.graph import Precision
from graphpipe.model.backends.inductor import INDUCTOR

needs_compiler = pytest.mark.skipif(bool(why := INDUCTOR.missing()), reason=why)
CLUSTER = gp.Cluster.preset("local:2")


class Reversed(torch.autograd.Function):
    """A gradient that is turned around, as in domain adaptation."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -0.5 * gradients[0]


class Block(nn.Module):
    """A layer with dropout, and a backward of its own inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        inner = Reversed.apply(self.up(self.norm(x)))
        return x + self.drop(self.down(nn.functional.gelu(inner)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4)))


def planned(schedule: str = "1f1b", precision: Precision = "fp32", recompute: tuple[str, ...] = ("1",)) -> gp.Plan:
    graph = gp.capture(model(), torch.randn(8, 5, 16), precision=precision)
    stages = [
        gp.HandStage(ops=("0", "1"), devices=(0,), micro_batch=4, recompute=recompute or "none"),
        gp.HandStage(ops=("2", "3"), devices=(1,), micro_batch=4),
    ]
    costs = gp.estimate(graph, CLUSTER)
    return gp.hand_plan(graph, costs, CLUSTER, batch_size=8, stages=stages, schedule=schedule)


def batches(*lengths: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(8, each, 16, generator=draw), torch.randn(8, each, 16, generator=draw)) for each in lengths]


def pipeline(plan: gp.Plan, module: nn.Module, *, compiled: bool, **options: Any) -> gp.Pipeline:
    chosen = gp.PipelineOptions(compile=compiled, seed=3, **options)
    return gp.Pipeline(
        plan, module, nn.functional.mse_loss, lambda weights: torch.optim.SGD(weights, lr=0.1), options=chosen
    )


def trained(plan: gp.Plan, *lengths: int, compiled: bool, **options: Any) -> tuple[list[float], nn.Module]:
    module = model()
    with pipeline(plan, module, compiled=compiled, **options) as running:
        losses = running.segment(batches(*lengths))
    return losses, module


@pytest.mark.slow
@needs_compiler
@pytest.mark.timeout(240)
def test_halves_of_compiled_backwards_train_as_eager_ones() -> None:
    plan, module = planned("zb-h1"), model()
    expected, plain = trained(plan, 5, 5, 7, compiled=False)
    with pipeline(plan, module, compiled=True) as running:
        losses = [running.step(*batch) for batch in batches(5, 5, 7)]
        assert running.backwards() == {"s1": "split"}
        assert running.compilations.keys() == {"Block"}
        assert running.compilations["Block"] <= 8, "equal layers are compiled once"
        with pytest.raises(NonFiniteLoss):
            running.step(torch.full((8, 5, 16), torch.inf), torch.zeros(8, 5, 16))
        # Between steps, and after one that failed, the modules are the user's own.
        assert gp.capture(module, torch.randn(8, 5, 16)).fingerprint == plan.graph.fingerprint
    assert losses == pytest.approx(expected, rel=1e-5)
    for mine, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_compiled_stages_without_a_flush_and_in_bfloat16_train_as_eager_ones() -> None:
    plan = planned(precision="bf16", recompute=())
    expected, _ = trained(plan, 5, 5, 5, compiled=False, weights="stash", precision="bf16")
    losses, _ = trained(plan, 5, 5, 5, compiled=True, weights="stash", precision="bf16")
    assert losses == pytest.approx(expected, rel=2e-2)


@needs_compiler
def test_a_compiler_that_is_wrong_ends_the_training_in_the_first_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's gradient of a group norm on images of one pixel was trained in silence."""

    def halved(graph: torch.fx.GraphModule, _: object) -> Any:
        def run(*given: Any) -> list[Tensor]:
            return [0.5 * each for each in graph(*given)]

        return run

    def compiler(*_: object) -> Any:
        return wrong

    def wrong(module: nn.Module) -> Any:
        def call(x: Tensor) -> Any:
            return module.forward(x)

        return torch.compile(call, backend=halved)

    monkeypatch.setattr("graphpipe.model.compiled.stage_compiler.region_compiler", compiler)
    with pipeline(planned(recompute=()), model(), compiled=True) as running:
        running.step(*batches(5)[0])
        with pytest.raises(InvalidInput, match=r"stage 's0': the compiled stage has another gradient of '0\."):
            running.step(*batches(5)[0])


def test_what_cannot_be_compiled_is_refused_by_name() -> None:
    graph = gp.capture(model(), torch.randn(8, 5, 16))
    stage = gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4, state="all")
    plan = gp.hand_plan(graph, gp.estimate(graph, CLUSTER), CLUSTER, batch_size=8, stages=[stage])
    with pytest.raises(InvalidInput, match="stage 's0' cannot be compiled: engine 'fsdp2' shards its weights"):
        pipeline(plan, model(), compiled=True)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "not-installed")
    with pytest.raises(InvalidInput, match=r"compile: the C\+\+ compiler not-installed is not installed"):
        pipeline(planned(), model(), compiled=True)
