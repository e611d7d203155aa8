"""What a user changes, or asks for, that a pipeline cannot follow: it is said before a weight changes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture_nodes
from tests.support.programs.plain_training import cut_plan


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6), torch.randint(3, (8,))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("frozen", ["0", "2", "0.bias"])
def test_layers_unfrozen_after_the_pipeline_was_built(frozen: str) -> None:
    """They were never trained."""
    one, (x, y) = model(), batch()
    weights = [each for name, each in one.named_parameters() if name.startswith(frozen)]
    for each in weights:
        each.requires_grad_(False)
    with gp.Pipeline(
        cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy, sgd
    ) as it:
        it.step(x, y)
        before = copy.deepcopy(one.state_dict())
        weights[0].requires_grad_(True)
        with pytest.raises(InvalidInput, match="was unfrozen after the pipeline was built"):
            it.step(x, y)
        it.evaluate(x, y)
        assert all(torch.equal(before[name], each) for name, each in one.state_dict().items())
        weights[0].requires_grad_(False)
        it.step(x, y)


@pytest.mark.timeout(60)
def test_layers_frozen_later_are_not_trained() -> None:
    one, (x, y) = model(), batch()
    with gp.Pipeline(
        cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy, sgd
    ) as it:
        it.step(x, y)
        one[0].requires_grad_(False)
        first, _, last, _ = one.parameters()
        held, head = first.detach().clone(), last.detach().clone()
        it.step(x, y)
        assert torch.equal(held, first)
        assert not torch.equal(head, last)
        one[0].requires_grad_(True)
        it.step(x, y)
        assert not torch.equal(held, first)


@pytest.mark.timeout(60)
def test_layers_unfrozen_between_capture_and_pipeline() -> None:
    one, (x, _) = model(), batch()
    one[0].requires_grad_(False)
    captured = capture_nodes(one, x)
    plan = cut_plan(captured.graph, batch_size=8, micro_batch=4)
    one[0].requires_grad_(True)
    for each in (captured, None):
        with pytest.raises(InvalidInput, match="'0' has trainable False in the plan, True in this model"):
            gp.Pipeline(plan, one, nn.functional.cross_entropy, options=gp.PipelineOptions(captured=each))


@pytest.mark.timeout(60)
def test_another_dtype_than_the_example() -> None:
    """Torch spoke of mat1 and mat2."""
    one, (x, y) = model(), batch()
    with gp.Pipeline(cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy) as it:
        for other in (torch.float64, torch.float16, torch.int64):
            with pytest.raises(InvalidInput, match=r"input 'input': is .*, in the example it was float32"):
                it.step(x.to(other), y)
        it.step(x, y)


@pytest.mark.timeout(60)
def test_an_integer_type_that_the_model_takes() -> None:
    one = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(6, 3))
    x, y = torch.randint(9, (8, 1)), torch.randint(3, (8,))
    with gp.Pipeline(cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy) as it:
        assert it.step(x, y) == it.step(x.int(), y)


class Twice(torch.optim.SGD):
    def step(self, again: int) -> None:  # type: ignore[override]
        del again


class Warned:
    """A schedule of the user's own, without torch's base class."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, loss: float) -> None:
        del loss


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("optimizer", "scheduler", "name"),
    [
        (sgd, Warned, r"Warned.step\(\) needs 'loss'"),
        (torch.optim.LBFGS, None, r"LBFGS.step\(\) needs 'closure'"),
        (lambda p: Twice(p, lr=0.1), None, r"Twice.step\(\) needs 'again'"),
    ],
)
def test_optimizers_that_need_more(optimizer: Any, scheduler: Any, name: str) -> None:
    """The weights were already changed when a TypeError came."""
    one, (x, _) = model(), batch()
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    with pytest.raises(InvalidInput, match=name):
        gp.Pipeline(
            plan, one, nn.functional.cross_entropy, optimizer, options=gp.PipelineOptions(lr_scheduler=scheduler)
        )


@pytest.mark.timeout(60)
def test_a_plateau_follows_what_it_is_given_and_no_step() -> None:
    one, (x, y) = model(), batch()
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    options = gp.PipelineOptions(lr_scheduler=lambda built: ReduceLROnPlateau(built, patience=0))
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd, options=options) as it:
        it.step(x, y)
        for loss, rate in ((1.0, 0.1), (2.0, 0.01), (0.5, 0.01)):
            it.step(x, y)
            for each in it.state.optimizers:
                each.evaluated(loss)
                assert [group["lr"] for group in each.optimizer.param_groups] == [pytest.approx(rate)]
        it.step(x, y)
