"""Forwards that mix the samples of a batch without a shape that shows it trained something else, without a word."""

import pytest
import torch
from latin_square import latin_square
from torch import Tensor
from torch.nn import functional

import graphpipe as gp
from tests.support.programs.divided_steps import Mix, model, step


def flipped(y: Tensor) -> Tensor:
    out = torch.empty_like(y)
    for row in range(len(y)):
        out[row] = y[len(y) - 1 - row]
    return y + out


def seeded_mask(y: Tensor) -> Tensor:
    return y * torch.rand(y.shape, generator=torch.Generator().manual_seed(3)).to(y)


def seeded_in_place(y: Tensor) -> Tensor:
    mask = torch.empty_like(y)
    return y * mask.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))


def seeded_by_torch(y: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return y * torch.rand_like(y)


KEPT = torch.Generator().manual_seed(3)


def seeded_weights(y: Tensor) -> Tensor:
    return y @ torch.randn(y.shape[1], y.shape[1], generator=torch.Generator().manual_seed(3)).to(y)


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
    "not below the median": lambda y: y * (y.sum(1) >= y.sum(1).median())[:, None],  # two samples showed nothing
    "order": lambda y: y * y[:, 0].argsort().argsort()[:, None].to(y),
    "neighbours": lambda y: functional.conv1d(y.T[:, None], torch.ones(1, 1, 3).to(y), padding=1)[:, 0].T,
    "scattered": lambda y: y + torch.zeros_like(y).index_add(0, torch.zeros(len(y), dtype=torch.long), y)[:1],
    "written by rows": flipped,
    "a mask that is equal in each call": seeded_mask,
    "such a mask, drawn in place": seeded_in_place,
    "such a mask of torch's own generator": seeded_by_torch,
    # Shuffled samples passed, because a drawn order was the one that samples had.
    "shuffled": lambda y: y - y[torch.randperm(len(y))],
    "shuffled by sorting noise": lambda y: y - y[torch.rand(len(y)).argsort()],
    "drawn without replacement": lambda y: y - y[torch.ones(len(y)).multinomial(len(y))],
    "mixed by a number of a beta distribution": lambda y: y + torch.distributions.Beta(0.4, 0.4).sample() * y.flip(0),
}
PER_SAMPLE: dict[str, Mix] = {
    "a product over features": lambda y: y - y[:, :1],
    "sorted features": lambda y: torch.sort(y, dim=1).values,
    "dropout": lambda y: functional.dropout(y, 0.2, training=True),
    "noise": lambda y: y + 0.1 * torch.randn_like(y),
    "noise of a generator that goes on": lambda y: y + 0.1 * torch.randn(y.shape, generator=KEPT).to(y),
    "fixed weights of a seed": seeded_weights,
    "nothing but rounding": lambda y: y + (1e4 * (y + 1e-4 * y @ y.T.detach()[:, :1] * 0) - 1e4 * y),
    "experts": lambda y: torch.where(y.argmax(1, keepdim=True) > 2, y * 2, y),
    "shuffled and back": lambda y: (lambda at: torch.tanh(y[at])[at.argsort()])(torch.randperm(len(y))),
    "shuffled features": lambda y: y.gather(1, torch.rand(y.shape).argsort(1)),
    "grouped and back": lambda y: y[y[:, 0].argsort()][y[:, 0].argsort().argsort()],
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "micro_batch", "at"),
    latin_square(MIXES, [1, 2, 4], ["2", "3"]),  # in the last stage, and in one that sends it on
)
def test_in_any_stage(name: str, micro_batch: int, at: str) -> None:
    one = model(MIXES[name])
    if name in ("largest two", "batch norm") and micro_batch == 1:
        pytest.skip("torch itself refuses one sample")
    with pytest.raises(gp.InvalidInput, match=r"the forward of '2' mixes the samples .*and the loss depends on it"):
        step(one, at, micro_batch)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_no_false_alarm(name: str) -> None:
    for micro_batch in (1, 4):
        step(model(PER_SAMPLE[name]), "3", micro_batch)
