"""What a check leaves as it was, what it says of random numbers, and how it survives crashes and hangs."""

import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from checked_model import WIDE, Cut, Model, checked, cut_everywhere, kinds, samples
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.equivalence.steps import isolated

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def plain_program() -> Cut:
    return cut_everywhere(Model(), samples()[0])


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in model.state_dict().items()}


@pytest.mark.parametrize("forks", [True, False])
def test_weights_buffers_gradients_and_generators_are_untouched(
    plain_program: Cut, monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    # In a process of its own, and in this one, as where CUDA is in use.
    def busy(model: Model, hidden: Tensor) -> Tensor:
        model.get_buffer("scale").mul_(0.5)
        vars(model)["counted"] = vars(model).get("counted", 0) + 1
        with torch.no_grad():
            model.frozen.weight.add_(1.0)
        return model.middle(nn.functional.dropout(hidden, 0.5)) * random.random() * float(np.random.rand())

    monkeypatch.setattr(isolated, "_can_fork", lambda: forks)
    model = Model(busy)
    model.first.weight.grad = torch.ones(4, 4)
    before, modes = state_of(model), [part.training for part in model.modules()]
    draws = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    assert not checked(model, plain_program).equal
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(model.first.weight.grad, torch.ones(4, 4))
    assert [part.training for part in model.modules()] == modes
    assert not hasattr(model, "counted")
    assert model.middle.weight.grad is None
    assert draws[0] == random.getstate()
    assert draws[1] == str(np.random.get_state())
    assert torch.equal(draws[2], torch.get_rng_state())
    assert torch.get_default_dtype() is torch.float32


def test_random_masks_are_off_and_noise_is_said() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x + torch.randn_like(x), 0.3)[:, None]

    lstm = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Noisy(), lstm, Last())
    found = checked(model, cut_everywhere(model, samples()[0]))
    assert found.equal, str(found)
    assert found.notes[0] == "dropout was off"
    assert "draws random numbers (randn_like)" in found.notes[1]


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, results: Any) -> Tensor:
        return self.layer(results[0][:, 0])


def test_random_numbers_from_elsewhere_are_found() -> None:
    class Numpy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(np.random.rand())

    model = nn.Sequential(nn.Linear(4, 4), Numpy(), nn.Linear(4, 3))
    found = checked(model, cut_everywhere(nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 3)), samples()[0]))
    assert not found.equal
    assert not found.repeats
    assert "Two plain steps with other seeds differ too" in str(found)


def test_batch_norm_is_compared_without_its_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False), Last4())
    found = checked(model, cut_everywhere(model, samples()[0]))
    assert found.equal, str(found)
    assert "batch norm used the statistics that it holds" in found.notes[0]


def test_batch_norm_of_micro_batches_of_one_sample_is_compared_without_its_statistics() -> None:
    # ResNets whose replicas had one sample each were refused: it was taken for instance norm, which is exact.
    norms = nn.BatchNorm1d(4), nn.InstanceNorm1d(4), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    layers = nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 2, padding=1), *norms, nn.Flatten()
    model = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(8, 3))
    found = checked(model, cut_everywhere(model, samples()[0], micro_batch=1))
    assert found.equal, str(found)
    assert "batch norm used the statistics that it holds" in found.notes[0]


def misread_by_torch() -> bool:
    """Whether batch norm computes another gradient for one sample if channels are innermost in what it gets."""
    norm, x = nn.BatchNorm2d(4), torch.randn(1, 4, 2, 2, requires_grad=True)
    gradient = torch.randn(1, 4, 4).transpose(1, 2).reshape(1, 4, 2, 2)
    one, other = (torch.autograd.grad(norm(x), x, each)[0] for each in (gradient, gradient.contiguous()))
    return not torch.allclose(one, other)


def test_a_gradient_that_torch_misreads_for_one_sample_is_found() -> None:
    # EfficientFormer turns images into rows. Torch 2.13 computes other gradients of it for one sample than for two.
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2).transpose(1, 2)

    images = nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 4, (1, 2), padding=(0, 1)), nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Linear(4, 4), *images, Rows(), nn.Linear(4, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    assert checked(model, cut_everywhere(model, samples()[0], micro_batch=2)).equal
    assert checked(model, cut_everywhere(model, samples()[0], micro_batch=1)).equal is not misread_by_torch()


def test_a_buffer_that_the_forward_makes_is_compared_by_its_name() -> None:
    # x-transformers' ALiBi keeps its table so. The check ended with a KeyError.
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", None, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if dict(self.named_buffers()).get("table") is None:
                self.register_buffer("table", torch.arange(4.0).to(x), persistent=False)
            return x + self.get_buffer("table")

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Table(), nn.Tanh()), nn.Linear(4, 3))
    found = checked(model, cut_everywhere(model, samples()[0]))
    assert found.equal, str(found)


class Last4(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)


def test_a_crash_and_a_hang_do_not_take_this_process(plain_program: Cut) -> None:
    parent = os.getpid()

    def crash(model: Model, hidden: Tensor) -> Tensor:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGSEGV)
        return model.middle(hidden)

    with pytest.raises(gp.InvalidInput, match="a step in plain PyTorch ended its process by SIGSEGV"):
        checked(Model(crash), plain_program)

    def hang(model: Model, hidden: Tensor) -> Tensor:
        time.sleep(60 if os.getpid() != parent else 0)
        return model.middle(hidden)

    inputs, targets = samples()
    with pytest.raises(gp.InvalidInput, match="did not end within 1 s"):
        gp.check(
            plain_program.plan,
            Model(hang),
            nn.functional.cross_entropy,
            inputs,
            targets,
            captured=plain_program.captured,
            timeout_seconds=1,
        )


def test_a_pipeline_that_fails_is_a_difference(plain_program: Cut) -> None:
    # Weight clipping in a middle stage ended in torch's "modified by an inplace operation".
    def picky(output: Tensor, target: Tensor) -> Tensor:
        if len(output) < 4:
            raise RuntimeError("modified by an inplace operation")
        return nn.functional.cross_entropy(output, target)

    found = checked(Model(), plain_program, picky)
    assert (found.level, kinds(found)) == ("micro-batches", {"error"})
    assert "the step of the pipeline raised RuntimeError: modified by an inplace operation (test_check.py, line" in str(
        found
    )


def test_a_model_that_does_not_run_in_double_precision_is_compared_in_single(plain_program: Cut) -> None:
    def single(model: Model, hidden: Tensor) -> Tensor:
        assert hidden.dtype is torch.float32
        return model.middle(hidden)

    found = checked(Model(single), plain_program)
    assert (found.equal, found.precision) == (True, "single")
    assert "does not run in double precision" in found.notes[0]


def test_constants_of_single_precision_in_a_capture_are_no_difference() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) * torch.tensor(0.1) + torch.finfo(x.dtype).eps * torch.linspace(0, 1e4, 4))

    model = Scaled()
    assert checked(model, cut_everywhere(model, samples()[0])).equal


def test_too_few_samples_are_refused(plain_program: Cut) -> None:
    inputs, targets = samples(3)
    with pytest.raises(gp.InvalidInput, match="3 samples were given, the plan divides at least 4"):
        gp.check(plain_program.plan, Model(), nn.functional.cross_entropy, inputs, targets)


def test_a_loss_that_fails_in_plain_pytorch_is_named(plain_program: Cut) -> None:
    def wrong(output: Tensor, target: Tensor) -> Tensor:
        raise KeyError("labels")

    with pytest.raises(gp.InvalidInput, match=r"a step in plain PyTorch raised KeyError: 'labels' \(test_check.py"):
        checked(Model(), plain_program, wrong)


class Bank(nn.Module):
    """Adds to a value what it kept of the call before, if it `keeps`; else it only builds a table once."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.layer, self.keeps, self.kept = nn.Linear(WIDE, WIDE), keeps, None

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        if self.keeps:
            made = made if self.kept is None else made + 0.1 * self.kept.mean(0)
            self.kept = made.detach()
        elif self.kept is None:
            self.kept = torch.arange(WIDE)
        return made


class WithBank(nn.Module):
    """A model whose own forward keeps values, which a capture follows."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.bank, self.last = Bank(keeps=keeps), nn.Linear(WIDE, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Bank.forward(self.bank, x))


class RunningMean:
    """A loss relative to the mean of those before."""

    def __init__(self) -> None:
        self.mean = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * float(loss)
        return loss / self.mean


def test_values_that_are_kept_between_calls_are_found_in_a_second_step() -> None:
    """A memory bank in an attribute was followed as its first call went, in silence: it adds nothing there."""
    loss = nn.functional.cross_entropy
    for keeps in (True, False):
        model = WithBank(keeps=keeps)
        found = checked(model, cut_everywhere(model, samples()[0]), loss)
        assert found.level == ("capture" if keeps else None)
        assert ("it keeps values between calls" in found.remedy) is keeps
        assert model.bank.kept is None
    whole = nn.Sequential(Bank(keeps=True), nn.Linear(WIDE, 3))
    assert checked(whole, cut_everywhere(whole, samples()[0]), loss).level == "micro-batches"
    assert checked(whole, cut_everywhere(whole, samples()[0], micro_batch=8), loss).equal
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 3))
    found = checked(model, cut_everywhere(model, samples()[0]), RunningMean())
    assert found.level == "micro-batches"
