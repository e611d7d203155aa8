"""A value that gets no gradient sent zeros over a cut, and AdamW decayed weights that plain PyTorch leaves alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from latin_square import latin_square
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.run.stage.edge_values import gradient_of, is_none, no_gradient
from tests.support.programs.plain_training import distance

Use = Callable[[Tensor, Tensor], Tensor]


def unused(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        mask = (b > 0).to(a.dtype)
    return a * mask


USES: dict[str, Use] = {
    "detached": lambda a, b: a + b.detach(),
    "argmax": lambda a, b: a + b.argmax(1, keepdim=True),
    "gate": lambda a, b: a * (b > 0),
    "no_grad": unused,
    "where": lambda a, b: torch.where(b > 0, a, 2 * a),
    "rounded": lambda a, b: a * b.round(),  # its gradient is zeros, in plain PyTorch too
    "negative zeros": lambda a, b: a - 0.0 * b,
}


class Two(nn.Module):
    def __init__(self, use: Use) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.join = nn.Linear(6, 6), nn.Linear(6, 6), Join(use)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.one(x), self.two(x))


class Join(nn.Module):
    def __init__(self, use: Use) -> None:
        super().__init__()
        self.use, self.out = use, nn.Linear(6, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(self.use(a, b))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "cut"), latin_square(USES, [1, 2]))
def test_none_stays_none_over_a_cut(name: str, cut: int) -> None:
    assert distance(Two(USES[name]), [batch()] * 3, nn.functional.cross_entropy, optimizer=adamw, cut=cut) < 1e-12


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        return {"one": self.one(h), "two": self.two(h)}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("micro_batch", [2, 8])
def test_an_output_that_the_loss_does_not_read(cut: int, micro_batch: int) -> None:
    def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output["one"], target)

    assert distance(Heads(), [batch()] * 3, loss, optimizer=adamw, cut=cut, micro_batch=micro_batch) < 1e-12


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("schedule", "recompute"), [("zb-h1", "none"), ("1f1b", "full"), ("gpipe", "none")])
def test_other_backwards(schedule: str, recompute: str) -> None:
    model, (x, y) = Two(USES["gate"]).double(), batch()
    graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:3")
    each = {"micro_batch": 2, "recompute": recompute}
    stages = [gp.HandStage(ops=(op.name,), devices=(number,), **each) for number, op in enumerate(graph.ops)]  # type: ignore[arg-type]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages, schedule=schedule)
    with gp.Pipeline(plan, model, nn.functional.cross_entropy) as pipeline:
        for _ in range(2):
            pipeline.step(x, y)
            assert {name for name, each in pipeline.gradients().items() if each is None} == {"two.weight", "two.bias"}


@pytest.mark.timeout(60)
def test_negative_zeros() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.complex64):
        none = no_gradient(torch.ones(2, 3, dtype=dtype))
        assert is_none(none)
        assert dtype.is_complex or is_none(none + none)
        assert not is_none(none + torch.zeros(2, 3, dtype=dtype))
        assert not is_none(torch.cat([none, torch.zeros(2, 3, dtype=dtype)]))
        leaf = torch.ones(2, 3, dtype=dtype, requires_grad=True)
        leaf.grad = none
        assert not is_none(gradient_of(leaf)), "a gradient of negative zeros is a gradient"
    assert not is_none(torch.empty(0, 3))
