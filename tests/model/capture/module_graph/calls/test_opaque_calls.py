"""Calls of opaque submodules are recorded, with the arguments that they write into."""

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.capture.module_graph.calls.opaque_calls import OpaqueCall, recording
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.torch_private import fake_mode


class Writes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y[:, 0].add_(1)
        return x + y


def test_a_recorded_call_is_one_operator_that_lists_the_arguments_it_wrote_into() -> None:
    mode = fake_mode()
    model = nn.Sequential(nn.Linear(3, 3))
    model.add_module("writes", Writes())
    root = fake_copy(model, mode)
    with mode:
        x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    inside = fake_mode()
    runs = StaticRuns(fake_copy(model, inside), inside)
    with recording(root, ["writes"], runs) as calls:
        assert root.get_submodule("writes")(x, y=y).shape == (2, 3)
    (call,) = calls
    assert isinstance(call, OpaqueCall)
    assert (call.path, call.tensor_slots, [position for position, _ in call.outcome.written]) == ("writes", [0, 1], [1])
    assert "_call_impl" not in vars(root.get_submodule("writes"))


class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.points)


def test_distances_have_other_operators_for_many_points() -> None:
    """A model with few prototypes was refused as one that branches on the number of samples."""
    graph = gp.capture(nn.Sequential(nn.Linear(3, 3), Prototypes()), torch.randn(8, 3))
    assert graph.order == ("0", "1")
