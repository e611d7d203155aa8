"""Forwards that mix the samples of a batch without a shape that shows it trained something else, without a word."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture_nodes

Mix = Callable[[Tensor], Tensor]
WIDE = 6


def flipped(y: Tensor) -> Tensor:
    out = torch.empty_like(y)
    for row in range(len(y)):
        out[row] = y[len(y) - 1 - row]
    return y + out


MIXES: dict[str, Mix] = {
    "the first sample": lambda y: y - y[:1],
    "the last sample": lambda y: y + 0.5 * y[-1],
    "rolled": lambda y: y - torch.roll(y, 1, 0),
    "rolled by joining": lambda y: y - torch.cat([y[1:], y[:1]]),
    "number of samples": lambda y: y / y.shape[0],
    "numbers of rows": lambda y: y * torch.arange(1.0, 1 + len(y)).to(y)[:, None],
    "batch norm": lambda y: functional.batch_norm(y, None, None, training=True),
    "group norm over samples": lambda y: functional.group_norm(y.T[None], 2)[0].T,
    "sorted": lambda y: torch.sort(y, dim=0).values,
    "cumulative": lambda y: torch.cumsum(y, 0),
    "largest two": lambda y: y - y.topk(2, dim=0).values.mean(),
    "a median": lambda y: y - y.median(dim=0).values,
    "order": lambda y: y * y[:, 0].argsort().argsort()[:, None].to(y),
    "neighbours": lambda y: functional.conv1d(y.T[:, None], torch.ones(1, 1, 3).to(y), padding=1)[:, 0].T,
    "scattered": lambda y: y + torch.zeros_like(y).index_add(0, torch.zeros(len(y), dtype=torch.long), y)[:1],
    "written by rows": flipped,
}
PER_SAMPLE: dict[str, Mix] = {
    "a product over features": lambda y: y - y[:, :1],
    "sorted features": lambda y: torch.sort(y, dim=1).values,
    "dropout": lambda y: functional.dropout(y, 0.2, training=True),
    "noise": lambda y: y + 0.1 * torch.randn_like(y),
    "nothing but rounding": lambda y: y + (1e4 * (y + 1e-4 * y @ y.T.detach()[:, :1] * 0) - 1e4 * y),
    "experts": lambda y: torch.where(y.argmax(1, keepdim=True) > 2, y * 2, y),
    "grouped and back": lambda y: y[y[:, 0].argsort()][y[:, 0].argsort().argsort()],
}


class Doing(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix, self.layer = mix, nn.Linear(WIDE, WIDE)

    def forward(self, y: Tensor) -> Tensor:
        return self.layer(self.mix(y))


def model(mix: Mix) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), Doing(mix), nn.Linear(WIDE, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, WIDE, dtype=torch.float64), torch.randint(3, (8,))


@cache
def plain() -> Captured:
    origin = Origin(method="auto", opaque=("2",))
    return capture_nodes(model(lambda y: y * 1.0).double(), batch()[0], origin)


@cache
def cut(at: str, micro_batch: int) -> tuple[gp.Plan, Captured]:
    """Return a plan with two stages, of which the second begins with an operator, and the capture it was made from."""
    captured, cluster = plain(), gp.Cluster.preset("local:2")
    graph = captured.graph
    names = graph.order
    first = names.index(at)
    stages = [
        gp.HandStage(ops=tuple(names[:first]), devices=(0,), micro_batch=micro_batch),
        gp.HandStage(ops=tuple(names[first:]), devices=(1,), micro_batch=micro_batch),
    ]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=8, stages=stages), captured


def step(one: nn.Module, at: str, micro_batch: int = 2, **options: Any) -> None:
    """Train a step, with a capture that knows of no mixture."""
    plan, captured = cut(at, micro_batch)
    made = gp.PipelineOptions(captured=captured, **options)
    with gp.Pipeline(plan, one.double(), functional.cross_entropy, options=made) as pipe:
        pipe.step(*batch())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("name", MIXES)
def test_in_any_stage(name: str, micro_batch: int) -> None:
    one = model(MIXES[name])
    if name in ("largest two", "batch norm") and micro_batch == 1:
        pytest.skip("torch itself refuses one sample")
    for at in ("2", "3"):  # in the last stage, and in one that sends it on
        with pytest.raises(gp.InvalidInput, match=r"the forward of '2' mixes the samples .*and the loss depends on it"):
            step(one, at, micro_batch)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_no_false_alarm(name: str) -> None:
    for micro_batch in (1, 4):
        step(model(PER_SAMPLE[name]), "3", micro_batch)
