"""Backwards written by hand that mix samples were run for each micro-batch, without a word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import graphpipe as gp
from tests.support.programs.divided_steps import model, step


class Backward(torch.autograd.Function):
    """The identity, with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def hooked(y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    y = y * 1.0
    if y.requires_grad:
        y.register_hook(change)
    return y


def straight_through(y: Tensor) -> Tensor:
    other = y - y[:1]
    return y + (other - other.detach())


MIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda y: Backward.apply(y, lambda g: g / g.norm()),  # pyright: ignore
    "mean": lambda y: Backward.apply(y, lambda g: g - g.mean(0)),  # pyright: ignore
    "norm in a hook": lambda y: hooked(y, lambda g: g / g.norm()),
    "largest in a hook": lambda y: hooked(y, lambda g: g / g.abs().max()),
    "number of samples in a hook": lambda y: hooked(y, lambda g: g * len(g)),
    "straight through": straight_through,
}
PER_SAMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "reversed": lambda y: Backward.apply(y, lambda g: -0.5 * g),  # pyright: ignore
    "each row's norm": lambda y: Backward.apply(y, lambda g: g / g.norm(dim=1, keepdim=True)),  # pyright: ignore
    "clipped in a hook": lambda y: hooked(y, lambda g: g.clamp(-1e-3, 1e-3)),
    "checkpoint": lambda y: checkpoint(torch.tanh, y, use_reentrant=False),  # pyright: ignore
    "reentrant checkpoint": lambda y: checkpoint(torch.tanh, y, use_reentrant=True),  # pyright: ignore
    "no gradient": lambda y: y.detach(),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize("name", MIXES)
def test_a_backward_that_mixes_samples(name: str, micro_batch: int) -> None:
    for at in ("2", "3"):
        with pytest.raises(gp.InvalidInput, match=r"the gradient of '.*' is another one if samples are divided"):
            step(model(MIXES[name]), at, micro_batch)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_no_false_alarm(name: str) -> None:
    """A reentrant checkpoint ended the step with an error of torch's."""
    for micro_batch in (1, 4):
        step(model(PER_SAMPLE[name]), "3", micro_batch)


@pytest.mark.timeout(60)
def test_a_full_backward_hook_that_mixes_samples() -> None:
    one: Any = model(lambda y: y * 1.0)
    one[2].register_full_backward_hook(lambda _, given, __: tuple(each / each.norm() for each in given))
    with pytest.raises(gp.InvalidInput, match="a backward mixes the samples of a batch"):
        step(one, "3", 2)


@pytest.mark.timeout(60)
def test_gradients_and_buffers_are_as_before() -> None:
    """What is compared leaves nothing behind: the gradients of the step are those of plain PyTorch."""
    one: Any = model(nn.BatchNorm1d(6, momentum=0.5))
    before = one[2].mix.running_mean.clone()
    step(one, "3", 4)
    assert one[2].mix.num_batches_tracked == 2
    assert not torch.equal(one[2].mix.running_mean, before)
