"""Statistics over the samples in a forward were those of a micro-batch, and a scalar output passed as 0 bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from tests.support.programs.plain_training import distance

Mix = Callable[[Tensor], Tensor]
MIXES: dict[str, Mix] = {
    "mean": lambda y: y - y.mean(0, keepdim=True),
    "standard deviation": lambda y: torch.cat([y, y.std(0).mean().expand(y.shape[0], 1)], 1)[:, :6],
    "maximum": lambda y: y / y.detach().abs().max(),
    "softmax": lambda y: y * torch.softmax(y, 0),
    "products": lambda y: (y @ y.T).softmax(-1) @ y,
    "covariance": lambda y: y @ (y.T @ y),
    "sum of all": lambda y: y * y.flatten().sum(),
    "sorted": lambda y: y.sort(0).values,
    "rolled": lambda y: y + y.roll(1, 0),
    "reversed": lambda y: y + y.flip(0),
    "cumulative": lambda y: y.cumsum(0),
    "joined": lambda y: y - y.reshape(-1, 2).mean(0).repeat(3),
}
PER_SAMPLE: dict[str, Mix] = {
    "features": lambda y: y - y.mean(1, keepdim=True),
    "softmax": lambda y: torch.softmax(y, 1),
    "products": lambda y: torch.bmm(y[:, :, None], y[:, None]).sum(1),
    "sorted": lambda y: y.sort(1).values.flip(1),
    "first of each": lambda y: y * y[:, :1],
    "counted": lambda y: y * (y > 0).sum(1, keepdim=True),
    "number of samples": lambda y: y * torch.ones(y.shape[0], 1, dtype=y.dtype).mean(1, keepdim=True),
}


class Mixing(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix, self.norm = mix, nn.LayerNorm(6)

    def forward(self, y: Tensor) -> Tensor:
        return self.norm(self.mix(y))


class InRoot(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mix, self.one, self.two = mix, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.mix(self.one(x)))


def inside(mix: Mix) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), Mixing(mix), nn.Linear(6, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", MIXES)
def test_in_a_submodule(name: str) -> None:
    model, loss = inside(MIXES[name]), nn.functional.cross_entropy
    with pytest.warns(UserWarning, match=r"'1' mixes the samples of a batch \(\w+\).*whole_batch=\['1'\]"):
        gp.capture(model, batch()[0].float())
    assert distance(model, [batch()] * 2, loss, whole_batch=["1"]) < 1e-12


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", MIXES)
def test_in_the_model_itself(name: str) -> None:
    with pytest.warns(UserWarning, match=r"the model itself mixes the samples.*Move that part into a submodule"):
        gp.capture(InRoot(MIXES[name]), batch()[0].float())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("make", [inside, InRoot])
def test_what_does_not_mix_samples_is_trained(name: str, make: Callable[[Mix], nn.Module]) -> None:
    assert distance(make(PER_SAMPLE[name]), [batch()], nn.functional.cross_entropy) < 1e-12


class Chosen(nn.Module):
    """Computes with some of the samples, as X-MOD does with those of a language."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.where(x[:, 0] > 0)[0]
        return self.norm(x.index_copy(0, rows, self.one(x[rows])))


@pytest.mark.timeout(60)
def test_some_of_the_samples_are_not_mixed() -> None:
    """All layers of X-MOD got the whole mini-batch."""
    model = nn.Sequential(nn.Linear(6, 6), Chosen(), nn.Linear(6, 3))
    assert distance(model, [batch()], nn.functional.cross_entropy) < 1e-12


class Experts(nn.Module):
    """Returns a balance loss of the whole batch beside the result, as Switch does."""

    def __init__(self, *, returned: bool) -> None:
        super().__init__()
        self.returned, self.gate = returned, nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        p = self.gate(x).softmax(-1)
        y = sum(p[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        share = nn.functional.one_hot(p.argmax(-1), 4).to(p.dtype).mean(0)
        balance = 4 * (share * p.mean(0)).sum()
        return (y, balance) if self.returned else y


class Switch(nn.Module):
    def __init__(self, *, returned: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.moe, self.out = nn.Linear(6, 6), Experts(returned=returned), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.moe(self.one(x))
        y, balance = y if isinstance(y, tuple) else (y, None)
        return {"y": self.out(y)} if balance is None else {"y": self.out(y), "balance": balance}


def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["y"], target) + 0.1 * output.get("balance", torch.zeros(()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("split", [(), ("moe",)])
def test_a_balance_loss_needs_the_whole_mini_batch(split: tuple[str, ...]) -> None:
    with pytest.warns(UserWarning, match=r"'moe' mixes the samples of a batch \(mean\)"):
        gp.capture(Switch(), batch()[0].float(), split=split)
    gp.capture(Switch(returned=False), batch()[0].float())  # a statistic that nothing depends on


@pytest.mark.timeout(60)
def test_norms_over_the_batch_are_those_of_micro_batches() -> None:
    """As in every pipeline, and as the limits say."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    assert len(gp.capture(model, batch()[0].float()).ops) == 2
