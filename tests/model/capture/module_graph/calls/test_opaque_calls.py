"""Calls of opaque submodules are recorded, with the arguments that they write into."""

from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.capture.module_graph.calls.opaque_calls import OpaqueCall, recording
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.hidden.registered_tensors import RegisteredTensors
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
    runs = StaticRuns(fake_copy(model, inside), inside, RegisteredTensors.of())
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


class Scaled(Tensor):
    """Values and their factor, as torchao's tensors in 8 bits."""

    values: Tensor
    factor: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, factor: Tensor) -> "Scaled":
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)  # pyright: ignore

    def __init__(self, values: Tensor, factor: Tensor) -> None:
        super().__init__()
        self.values, self.factor = values, factor

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "factor"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.values * each.factor if isinstance(each, Scaled) else each for each in args]
        return func(*plain, **(kwargs or {}))


class ScaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        factor = x.abs().amax(1, keepdim=True)
        return torch.mm(Scaled(x / factor, factor), weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].T @ x


class ScaledLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return ScaledProduct.apply(input, self.weight)  # pyright: ignore[reportReturnType]


def test_a_result_computed_inside_of_a_wrapping_tensor_depends_on_the_arguments() -> None:
    """A layer that wraps its input in such a tensor lost it, and the layers before it were dropped in silence."""
    graph = gp.capture(nn.Sequential(nn.Linear(3, 4), ScaledLinear(4, 4), ScaledLinear(4, 4)), torch.randn(8, 3))
    assert graph.order == ("0", "1", "2")
