"""Statistics over the samples in a forward were those of a micro-batch, and a scalar output passed as 0 bytes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from latin_square import latin_square
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
NORMED = ("standard deviation", "maximum", "sum of all")
"""What the norm after it, or the selection of features, takes away again."""
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
@pytest.mark.filterwarnings("ignore:.*mixes the samples")
@pytest.mark.parametrize(("name", "cut"), latin_square(MIXES, [1, 2]))  # in the stage with the loss, or before it
def test_in_a_submodule(name: str, cut: int) -> None:
    model, loss = inside(MIXES[name]), nn.functional.cross_entropy
    with pytest.warns(UserWarning, match=r"'1' mixes the samples of a batch \(\w+\).*whole_batch=\['1'\]"):
        gp.capture(model, batch()[0].float())
    if name not in NORMED:
        with pytest.raises(gp.InvalidInput, match=r"the forward of '1' mixes .* and the loss depends on it"):
            distance(copy.deepcopy(model), [batch()], loss, cut=cut, micro_batch=4)
    assert distance(model, [batch()] * 2, loss, whole_batch=["1"]) < 1e-12


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", MIXES)
def test_in_the_model_itself(name: str) -> None:
    with pytest.warns(UserWarning, match=r"the model itself mixes the samples.*Move that part into a submodule"):
        gp.capture(InRoot(MIXES[name]), batch()[0].float())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "make"), latin_square(PER_SAMPLE, [inside, InRoot]))
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


class Beside(nn.Module):
    """Returns a value of all samples beside one of each sample."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind, self.one, self.two = kind, nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.one(x)
        y = self.two(hidden)
        match self.kind:
            case "similarities":
                return {"y": y, "beside": hidden @ hidden.T}
            case "mean":
                return {"y": y, "beside": 0.5 * hidden.square().mean() + y.mean() / 3}
            case "product of means":
                return {"y": y, "beside": (hidden.mean(0) * y.mean()).sum()}
            case "of a constant":
                return {"y": y, "beside": (hidden.mean(0).detach() - hidden).square()}
            case "squared later":
                return {"y": y, "beside": hidden.mean()}
            case "kept in a buffer":
                with torch.no_grad():
                    self.get_buffer("seen").copy_(hidden.mean(0))
                return {"y": y, "beside": hidden}
            case "counted":  # as a router counts the words of each expert
                counts = torch.histc(hidden.argmax(1).to(hidden.dtype), bins=6, min=0, max=5)
                order = hidden.argmax(1).argsort(stable=True)
                back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0]))
                return {"y": y, "beside": (hidden[order] * counts.sum().sign())[back]}
            case _:
                return {"y": y, "beside": hidden.square().sum()}


def of_both(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["y"], target) + 0.1 * output["beside"].mean()


def of_square(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["y"], target) + output["beside"].mean().square()


def of_one(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["y"], target)


def as_sum(output: dict[str, Tensor], target: Tensor) -> tuple[Tensor, int]:
    return output["beside"], len(target)


def by_hand(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return output["beside"] / len(target)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*mixes the samples")
@pytest.mark.parametrize(
    ("kind", "loss_fn", "micro_batch"),
    latin_square(
        [
            *((kind, of_both) for kind in ("similarities", "product of means", "of a constant", "sum")),
            ("squared later", of_square),
        ],
        [1, 2, 4],
    ),
)
def test_a_loss_of_mixed_parts_is_refused(kind: str, loss_fn: Any, micro_batch: int) -> None:
    model = Beside(kind)
    with pytest.raises(gp.InvalidInput, match=r"mixes the samples of a batch .* and the loss depends on it"):
        distance(model, [batch()], loss_fn, micro_batch=micro_batch, cut=0)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*mixes the samples")
@pytest.mark.parametrize(
    ("kind", "loss_fn"),
    [
        ("similarities", of_one),  # CLIP returns those of a micro-batch
        ("product of means", of_one),
        ("mean", of_both),
        ("counted", of_both),
        ("kept in a buffer", of_both),
    ],
)
def test_what_is_exact_all_the_same_is_trained(kind: str, loss_fn: Any) -> None:
    """Refusing all of these by their shapes refused Mixtral, CLIP and moving averages."""
    model = Beside(kind)
    state = model.get_buffer("seen").clone()
    away = distance(model, [batch()] * 2, loss_fn, cut=0)
    assert away < 1e-12 or (kind == "kept in a buffer" and not torch.equal(model.get_buffer("seen"), state))


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*mixes the samples")
def test_a_sum_is_exact_with_its_weight() -> None:
    assert distance(Beside("sum"), [batch()] * 2, as_sum, plain_loss=by_hand, cut=0) < 1e-12
