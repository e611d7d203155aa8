"""Scripted and traced submodules are trained as they are: their buffers cannot be exchanged as those of others."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from tests.support.programs.plain_training import cut_plan, distance

pytestmark = pytest.mark.timeout(60)

SAMPLES = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).double()


class Counting(nn.Module):
    """Computes with a counter that it changes in place, and with one that it replaces."""

    seen: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 6), 0
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1.0)
        self.total = self.total + 1.0
        self.calls += 1
        return self.layer(x) * self.seen + self.total + self.calls


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def norm() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).double()


def scripted() -> nn.Module:
    return torch.jit.script(norm())


def traced() -> nn.Module:
    made: Any = torch.jit.trace(norm(), SAMPLES)
    return made


def counting() -> nn.Module:
    return torch.jit.script(Counting().double())


def saved_and_loaded() -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(norm()), file)
    file.seek(0)
    return torch.jit.load(file)


def around(middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), middle, nn.Linear(6, 3)).double()


def trained(middle: nn.Module) -> tuple[list[float], dict[str, Tensor]]:
    """Return losses and state of two steps in plain PyTorch."""
    model, losses = around(middle), list[float]()
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        updates.zero_grad()
        loss = nn.functional.cross_entropy(model(SAMPLES), torch.arange(8) % 3)
        loss.backward()
        updates.step()
        losses.append(loss.item())
    return losses, copy.deepcopy(dict(model.state_dict()))


@pytest.mark.parametrize("middle", [scripted, traced, saved_and_loaded, counting])
def test_a_capture_and_the_checks_of_the_first_step_leave_its_buffers(middle: Callable[[], nn.Module]) -> None:
    """They ran the module itself: its moving means took ones, and its counters counted, without a word."""
    torch.manual_seed(1)
    losses, state = trained(middle())
    torch.manual_seed(1)
    model = around(middle())
    plan = cut_plan(gp.capture(model, SAMPLES), batch_size=8, micro_batch=8)
    with gp.Pipeline(plan, model, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1)) as pipeline:
        found = [pipeline.step(SAMPLES, torch.arange(8) % 3) for _ in range(2)]
    assert found == pytest.approx(losses, abs=1e-12)
    assert {name: torch.equal(each, state[name]) for name, each in model.state_dict().items()} == dict.fromkeys(
        state, True
    )


@pytest.mark.parametrize("middle", [scripted, traced])
def test_it_is_checked_and_keeps_its_buffers(middle: Callable[[], nn.Module]) -> None:
    """A traced module has no Python dictionary of buffers: the check ended with a `KeyError` and blamed the model."""
    model = around(middle()).float()
    before = copy.deepcopy(dict(model.state_dict()))
    plan = cut_plan(gp.capture(model, SAMPLES.float()), batch_size=8, micro_batch=8)
    found = gp.check(plan, model, nn.functional.cross_entropy, SAMPLES.float(), torch.arange(8) % 3)
    assert found.equal, found
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*mixes the samples")
def test_one_that_mixes_samples_is_named() -> None:
    """The search for the place ended in "register_forward_hook is not supported on ScriptModules"."""
    refusal = pytest.raises(gp.InvalidInput, match=r"the forward of '1' mixes the samples.*whole_batch=\['1'\]")
    with refusal:
        distance(around(torch.jit.script(Centred())), [(SAMPLES, torch.arange(8) % 3)], nn.functional.cross_entropy)


def test_a_buffer_that_is_changed_before_the_backward_reads_it_is_refused_in_one_sentence() -> None:
    """Micro-batches are in flight together, so torch's "modified by an inplace operation" came up, without a remedy."""

    batches = [(SAMPLES, torch.arange(8) % 3)] * 2
    with pytest.raises(gp.InvalidInput, match=r"changes in place for the next micro-batch.*whole_batch=\['NAME'\]"):
        distance(around(Counting()), batches, nn.functional.cross_entropy, cut=2)
    found = distance(around(Counting()), batches, nn.functional.cross_entropy, whole_batch=["1"])
    assert found < 1e-12
