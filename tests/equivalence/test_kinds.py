"""The net finds what a capture may miss, without knowing the kind: each program here lacks what the model does.

These stories were reported of other pipelines, and of this one: a capture that follows the forward drops each of them.
The program is that of a twin without it, so that the tests hold whatever the capture has learnt since.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from checked_model import Cut, Model, checked, cut_everywhere, kinds, names, samples
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.equivalence.random_models import Injected, Reverse

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def plain_program() -> Cut:
    torch.manual_seed(0)
    return cut_everywhere(Model(), samples()[0])


@pytest.fixture(autouse=True)
def no_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off what refuses a loss before it is computed, where there is such a check: the net must find it alone."""
    monkeypatch.setattr("graphpipe.run.stage.stage_replica_run.check_no_injection", lambda *_, **__: None)
    monkeypatch.setattr("graphpipe.run.stage.stage_forward.mixing_of", lambda *_: None)
    for name in ("check_mean", "check_leaves", "check_module"):
        with suppress(ImportError, AttributeError):
            monkeypatch.setattr(f"graphpipe.run.stage.losses.sample_loss.{name}", lambda *_, **__: None)


def reversed_gradient(model: Model, hidden: Tensor) -> Tensor:
    return model.middle(Reverse.apply(hidden))


def halved_by_a_hook(model: Model, hidden: Tensor) -> Tensor:
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: 0.5 * gradient)
    return model.middle(hidden)


def momentum(model: Model, hidden: Tensor) -> Tensor:
    with torch.no_grad():
        for own, other in zip(model.frozen.parameters(), model.middle.parameters(), strict=True):
            own.lerp_(other, 0.1)
    return model.middle(hidden)


def clipped_weight(model: Model, hidden: Tensor) -> Tensor:
    with torch.no_grad():
        model.middle.weight.clamp_(-0.1, 0.1)
    return model.middle(hidden)


def written_through_data(model: Model, hidden: Tensor) -> Tensor:
    model.middle.weight.data.mul_(0.5)
    return model.middle(hidden)


def replaced_data(model: Model, hidden: Tensor) -> Tensor:
    model.middle.weight.data = 0.9 * model.middle.weight.data
    return model.middle(hidden)


def moving_scale(model: Model, hidden: Tensor) -> Tensor:
    model.get_buffer("scale").mul_(0.5)
    return model.middle(hidden)


@pytest.mark.parametrize(
    ("middle", "kind"),
    [
        (reversed_gradient, "gradient"),
        pytest.param(halved_by_a_hook, "gradient", marks=pytest.mark.slow),
        (momentum, "parameter"),
        pytest.param(clipped_weight, "parameter", marks=pytest.mark.slow),
        (written_through_data, "parameter"),
        pytest.param(replaced_data, "parameter", marks=pytest.mark.slow),
        (moving_scale, "buffer"),
    ],
)
def test_what_the_captured_program_lacks_is_found_at_the_capture(
    plain_program: Cut, middle: Callable[[Model, Tensor], Tensor], kind: str
) -> None:
    found = checked(Model(middle), plain_program)
    assert (found.level, kind in kinds(found)) == ("capture", True)
    assert "opaque=" in found.remedy


def test_the_gradient_differs_behind_the_operator_that_does_it(plain_program: Cut) -> None:
    found = checked(Model(reversed_gradient), plain_program)
    assert found.first == "first"
    assert "from the output of 'first' backwards" in found.remedy
    assert {*names(found, "gradient")} == {"first.weight", "first.bias"}


def test_a_changed_weight_is_named_where_it_is_first_read(plain_program: Cut) -> None:
    found = checked(Model(clipped_weight), plain_program)
    assert found.first == "middle"
    assert "middle.weight" in names(found, "parameter")


def test_an_equal_model_passes(plain_program: Cut) -> None:
    found = checked(Model(), plain_program)
    assert found.equal
    assert found.precision == "double"
    assert str(found).startswith("equal: the plan trains as plain PyTorch does (4 samples, 2 micro-batches per stage")


def test_reentrant_checkpoints_inside_are_equal(plain_program: Cut) -> None:
    # Their backward is written by hand, and is the same as that of the forward.
    model = Model(lambda model, hidden: checkpoint(model.middle, hidden, use_reentrant=True))  # pyright: ignore
    assert checked(model, plain_program).equal


def test_zeros_in_place_of_no_gradient_are_found() -> None:
    # AdamW decays a weight whose gradient is zero, and leaves one alone that has none.
    def zeros(model: Model, hidden: Tensor) -> Tensor:
        return 0 * model.middle(hidden) + model.middle(hidden).detach()

    def none(model: Model, hidden: Tensor) -> Tensor:
        return model.middle(hidden).detach()

    found = checked(Model(none), cut_everywhere(Model(zeros), samples()[0]))
    assert {*names(found, "none")} == {"middle.weight", "middle.bias"}
    assert "plain PyTorch leaves it without one (None)" in str(found)


def test_injected_gradients_are_found_in_micro_batches() -> None:
    # An opaque layer keeps its backward, which then adds the same gradient for every micro-batch.
    class Balanced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            found = self.layer(x)
            return Injected.apply(found, found.softmax(-1).mean(0).square().sum())

    model = nn.Sequential(nn.Linear(4, 4), Balanced(), nn.Linear(4, 3))
    cut = cut_everywhere(model, samples()[0], opaque=["1"])
    found = checked(model, cut)
    assert (found.level, kinds(found)) == ("micro-batches", {"gradient"})


def test_statistics_over_the_batch_are_found_in_micro_batches() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0, keepdim=True)) / (x.std(0, keepdim=True) + 1e-3)

    model = nn.Sequential(nn.Linear(4, 4), Centred(), nn.Linear(4, 3))
    found = checked(model, cut_everywhere(model, samples()[0], opaque=["1"]))
    assert (found.level, found.first) == ("micro-batches", "1")
    assert "whole_batch=" in found.remedy


def ignored(output: Tensor, target: Tensor) -> Tensor:
    target = torch.where(target == target[0], -100, target)
    return nn.functional.cross_entropy(output, target) if (target >= 0).any() else 0 * output.sum()


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, weight=torch.tensor([1.0, 5.0, 8.0]).to(output))


def summed(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="sum")


def rooted(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target).sqrt()


def dice(output: Tensor, target: Tensor) -> Tensor:
    p, y = output.softmax(-1), nn.functional.one_hot(target, 3).to(output)
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum() + (p * p).sum())


@pytest.mark.parametrize(
    "loss_fn", [ignored, rooted, *(pytest.param(each, marks=pytest.mark.slow) for each in (weighted, summed, dice))]
)
def test_losses_that_are_no_mean_over_samples_are_found_in_micro_batches(plain_program: Cut, loss_fn: Any) -> None:
    found = checked(Model(), plain_program, loss_fn)
    assert (found.level, "loss" in kinds(found)) == ("micro-batches", True)
    assert "its sum and its weight" in found.remedy


class Uncertain(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target) * torch.exp(-self.log_variance) + self.log_variance


def test_a_parameter_of_the_loss_that_nobody_trains_is_found(
    plain_program: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Uncertain()
    # A pipeline that knows only the parameters of the model, whatever it has learnt since.
    monkeypatch.setattr("graphpipe.equivalence.steps.cut_step._others", lambda *_: {})
    for loss_fn in (own, lambda output, target: own(output, target)):
        found = checked(Model(), plain_program, loss_fn)
        assert names(found, "untrained")[0].endswith("log_variance' of loss_fn")
        assert own.log_variance.grad is None


def test_a_loss_that_reads_a_weight_of_another_stage_is_found(plain_program: Cut) -> None:
    # On its own rank, the loss would read a copy that nobody trains.
    model = Model()
    found = checked(model, plain_program, lambda o, t: weighted(o, t) * 0 + summed(o, t) / len(o) + penalty(model))
    assert found.level == "cut"
    assert "loss_fn reads 'first.weight' (operator 'first') itself, a parameter that other devices train" in str(found)


def penalty(model: Model) -> Tensor:
    return 1e-2 * model.first.weight.square().sum()


def test_a_hook_that_clips_is_found_in_micro_batches_and_one_that_scales_is_equal(plain_program: Cut) -> None:
    model = Model()
    handle = model.first.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    assert checked(model, plain_program).level == "micro-batches"
    handle.remove()
    model.first.weight.register_hook(lambda gradient: 0.5 * gradient)
    assert checked(model, plain_program).equal
