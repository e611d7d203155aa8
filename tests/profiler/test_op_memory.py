"""What operators hold while they run, against arithmetic on shapes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import Curve
from graphpipe.model.capture.capture import capture
from graphpipe.model.inputs import name_inputs
from graphpipe.profiler.live_bytes import Living
from graphpipe.profiler.op_memory import temporaries
from graphpipe.profiler.profile import profile
from graphpipe.profiler.profile_ops import Effort, OpRun

WIDE, NARROW = 96, 8
WEIGHT = 4 * WIDE * NARROW
"""Bytes of the weight."""


def run_of(module: nn.Module, *, differentiable: bool = True, ends: bool = False) -> OpRun:
    def call(values: dict[str, Tensor]) -> Sequence[Tensor]:
        return [module(values["x"])]

    return OpRun(
        op="it",
        call=call,
        inputs={"x": torch.ones(32, NARROW)},
        differentiable=frozenset(["x"] if differentiable else []),
        parameters=tuple(module.parameters()),
        twin="it",
        ends=ends,
    )


def test_memory_counts_once_and_until_it_is_freed() -> None:
    with Living() as living:
        one = torch.zeros(10)
        view = one.view(2, 5)
        two = one + 1
    assert (living.bytes, living.peak) == (80, 80)
    del two
    living.forget_peak()
    assert (living.bytes, living.peak) == (40, 40)
    del one
    assert living.bytes == 40
    del view
    assert living.bytes == 0


def test_a_matrix_product_holds_the_gradients_of_weight_and_input() -> None:
    found = temporaries(run_of(nn.Linear(NARROW, WIDE, bias=False)), (1, 4, 32), 0.0)
    assert found.forward == Curve()  # its output is there at the end
    # The gradient of the weight, which is added to the one there, and of the input, which stays with the leaf.
    assert found.backward == Curve(lines=((WEIGHT, 4.0 * NARROW),))
    alone = temporaries(run_of(nn.Linear(NARROW, WIDE, bias=False), differentiable=False), (1, 4, 32), 0.0)
    assert alone.backward == Curve(lines=((WEIGHT, 0.0),))


def test_what_a_backward_frees_makes_room() -> None:
    # Back through sigmoid and product: the sigmoid's output (96 floats a sample) is read, and its gradient made.
    module = nn.Sequential(nn.Linear(NARROW, WIDE, bias=False), nn.Sigmoid())
    found = temporaries(run_of(module), (1, 32), 0.0).backward
    whole = {samples: 4 * WIDE * samples + WEIGHT + 4 * NARROW * samples for samples in (1, 32)}
    for samples, most in whole.items():
        # Beside the outputs, which the caller of an operator holds, all that is made is there at once.
        assert found(samples) == most


def test_a_forward_holds_what_is_not_kept() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2) + 1  # the product is needed by nobody

    found = temporaries(run_of(Twice()), (1, 32), 0.0)
    assert found.forward == Curve(lines=((0.0, 4.0 * NARROW),))


def test_the_model_is_left_as_it_was_and_sizes_that_are_refused_are_left_out() -> None:
    module = nn.Sequential(nn.Linear(NARROW, NARROW), nn.BatchNorm1d(NARROW))
    found = temporaries(run_of(module), (1, 2, 32), 0.0)
    assert found.backward(16) > 4 * NARROW * 16
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_loss_keeps_what_its_gradient_needs() -> None:
    model, words = nn.Sequential(nn.Linear(NARROW, WIDE)), torch.zeros(8, dtype=torch.int64)
    x = torch.randn(8, NARROW)
    costs = profile(
        model,
        x,
        Cluster.preset("local:1"),
        loss_fn=nn.functional.cross_entropy,
        targets=words,
        batch_sizes=(8,),
        effort=Effort(repeats=1, most=1, seconds=0.0),
    )
    held = costs.rows[-1].temporaries
    assert held is not None
    # The logarithms of the probabilities, and one number.
    assert held.loss_bytes_per_sample == pytest.approx(4 * WIDE, abs=1)
    graph = capture(model, x)
    silent = profile(model, name_inputs([each.name for each in graph.inputs], x), Cluster.preset("local:1"),
                     batch_sizes=(8,), effort=Effort(repeats=1, most=1, seconds=0.0))  # fmt: skip
    assert silent.rows[-1].temporaries is not None
    assert silent.rows[-1].temporaries.loss_bytes_per_sample == 0
