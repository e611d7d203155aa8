"""Forwards that reach parameters and buffers past the modules that hold them."""

import pytest
import torch
from checked_model import checked, cut_everywhere, samples
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.hidden.registered_tensors import RegisteredTensors
from graphpipe.model.torch_private import fake_mode

pytestmark = pytest.mark.timeout(120)


class Listed(nn.Module):
    """Reads parameters from a list and a buffer from a dict, as Kolmogorov-Arnold networks (pykan) do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.first, self.second = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))
        self.register_buffer("offset", torch.rand(4))
        self.scales, self.held = [self.first, self.second], {"offset": self.offset}

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(x) * self.scales[0] + self.held["offset"])
        return self.last(torch.tanh(self.other(hidden) * self.scales[1] * self.first))


class Inside(nn.Module):
    """Reads a parameter from a function that holds its module."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = lambda: self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.tanh(self.one(x))) @ self.weight()


class Head(nn.Module):
    """Reads the weight of another module, which a list hides from PyTorch."""

    def __init__(self, first: nn.Linear) -> None:
        super().__init__()
        self.scale, self.tied = nn.Linear(4, 4), [first.weight]

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.scale(x), self.tied[0])


class Tied(nn.Module):
    """Two heads share the weight of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(4, 4), nn.Linear(4, 4)
        self.heads = nn.ModuleList(Head(self.first) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(self.first(x)))
        return self.heads[0](hidden) + self.heads[1](hidden)


@pytest.mark.parametrize("model", [Listed, Inside])
def test_a_parameter_that_is_reached_past_its_name_is_trained(model: type[nn.Module]) -> None:
    # It was taken for a constant without data.
    made = model()
    found = checked(made, cut_everywhere(made, samples()[0]))
    assert found.equal, found


def test_a_submodule_that_reads_the_weight_of_another_is_followed() -> None:
    # Whole, it could only run in the stage that holds the other.
    model = Tied()
    cut = cut_everywhere(model, samples()[0])
    assert {"heads.0.scale", "heads.1.scale"} <= set(cut.plan.graph.order)
    found = checked(model, cut)
    assert found.equal, found


def test_only_a_whole_tensor_has_a_name() -> None:
    model = nn.Linear(4, 4)
    copied = fake_copy(model, fake_mode())
    tensors = RegisteredTensors.of(model, copied)
    assert tensors.name_of(model.weight.detach()) == tensors.name_of(next(copied.parameters())) == "weight"
    assert tensors.name_of(model.weight.detach()[:2]) is tensors.name_of(torch.zeros(4, 4)) is None
    assert tensors.elsewhere([model.weight], nn.Linear(2, 2)) == "weight"
    assert tensors.elsewhere([model.weight], model) is None
