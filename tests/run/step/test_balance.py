"""Balanced mini-batches train as they were given: only the micro-batch of a sample changes."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from plain_training import cut_plan, distance
from torch import Tensor, nn

import graphpipe as gp

WORK = torch.tensor([8, 8, 4, 4, 1, 1, 1, 1])


class Album(nn.Module):
    """Reads a mask whose ones are the work of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, pixels: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.tower(pixels * mask).relu())


def _model() -> nn.Module:
    torch.manual_seed(0)
    return Album()


def _batches() -> list[tuple[dict[str, Tensor], Tensor]]:
    torch.manual_seed(1)
    mask = (torch.arange(8) < WORK[:, None]).double()
    return [({"pixels": torch.randn(8, 8).double(), "mask": mask}, torch.randint(3, (8,))) for _ in range(2)]


class Seen:
    """Takes the work of samples from the mask, and remembers the order in which a hook sees them."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["mask"].sum(1)


@pytest.mark.parametrize("balance", ["mask", ["mask", Seen()]], ids=["input", "several"])
def test_losses_and_weights_are_those_of_plain_pytorch(balance: Any) -> None:
    """The mean over a mini-batch does not depend on the order of its samples."""
    options = gp.PipelineOptions(balance=balance)
    assert distance(_model(), _batches(), nn.functional.cross_entropy, pipeline=options) < 1e-12


@pytest.mark.filterwarnings("ignore:the plan counts other work")  # because of the hook
def test_micro_batches_have_about_the_same_work() -> None:
    """In the given order, they have 16, 8, 2 and 2 of 28."""
    model, (inputs, targets) = _model().double(), _batches()[0]
    plan = cut_plan(gp.capture(model, inputs), batch_size=8, micro_batch=2)
    work: list[float] = []
    handle = model.get_submodule("tower").register_forward_pre_hook(
        lambda _, given: work.append(float((given[0] != 0).sum()))
    )
    with gp.Pipeline(plan, model, nn.functional.cross_entropy, options=gp.PipelineOptions(balance="mask")) as it:
        it.step(inputs, targets)  # also looks whether samples are mixed
        work.clear()
        it.step(inputs, targets)
        trained = sorted(work)
        loss, outputs = it.evaluate(inputs, targets)
    handle.remove()
    assert trained == [5, 5, 9, 9]
    assert loss is not None
    torch.testing.assert_close(outputs, model(**inputs))


class Ordered(nn.Module):
    """A loss head whose result depends on the places of samples, as a matrix of pairs with a mask does."""

    def forward(self, values: Tensor) -> Tensor:
        places = torch.arange(len(values), dtype=values.dtype, device=values.device)
        return (values.softmax(0) * places[:, None]).cumsum(0)


@pytest.mark.filterwarnings("ignore:.*mixes the samples")
@pytest.mark.parametrize("cut", [1, 2])
def test_a_stage_with_the_whole_mini_batch_sees_the_given_order(cut: int) -> None:
    """Before it and after it, samples have their balanced places."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), Ordered(), nn.Linear(6, 3))
    batches = [(inputs["pixels"] * inputs["mask"], targets) for inputs, targets in _batches()]
    options = gp.PipelineOptions(balance=lambda inputs: (next(iter(inputs.values())) != 0).sum(1))
    found = distance(model, batches, nn.functional.cross_entropy, cut=cut, pipeline=options, whole_batch=["2"])
    assert found < 1e-12


@pytest.mark.parametrize(
    ("balance", "what"),
    [
        ("maks", "balance: 'maks' is no input of the model.*mask"),
        (lambda inputs: torch.ones(3), r"the function gives \[3\] numbers for 8 samples"),
        (lambda inputs: -torch.ones(8), "the function gives -1.0 for a sample"),
        (lambda inputs: "heavy", "the function gives a str"),
    ],
)
def test_what_is_no_work_is_refused(balance: Any, what: str) -> None:
    """Before anything is computed."""
    model, (inputs, targets) = _model().double(), _batches()[0]
    plan = cut_plan(gp.capture(model, inputs), batch_size=8, micro_batch=2)
    options = gp.PipelineOptions(balance=balance)
    with (
        gp.Pipeline(plan, model, nn.functional.cross_entropy, options=options) as it,
        pytest.raises(gp.InvalidInput, match=what),
    ):
        it.step(inputs, targets)
