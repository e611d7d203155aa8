"""Temporary memory of operators against arithmetic on shapes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import Curve
from graphpipe.model.capture.capture import capture
from graphpipe.model.inputs import name_inputs
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.op_memory import LiveBytes, temporaries
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.profile import profile

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
        signature="it",
        ends=ends,
    )


def test_shared_memory_counts_once_until_it_is_freed() -> None:
    with LiveBytes() as live:
        one = torch.zeros(10)
        view = one.view(2, 5)
        two = one + 1
    assert (live.bytes, live.peak) == (80, 80)
    del two
    live.forget_peak()
    assert (live.bytes, live.peak) == (40, 40)
    del one
    assert live.bytes == 40
    del view
    assert live.bytes == 0


def test_the_backward_of_a_product_allocates_the_gradients_of_weight_and_input() -> None:
    found = temporaries(run_of(nn.Linear(NARROW, WIDE, bias=False)), (1, 4, 32), 0.0)
    assert found.forward == Curve()  # the output is not temporary
    # The weight's gradient, which is added to the existing one, and the input's gradient, which stays in the leaf.
    assert found.backward == Curve(lines=((WEIGHT, 4.0 * NARROW),))
    without_input = temporaries(run_of(nn.Linear(NARROW, WIDE, bias=False), differentiable=False), (1, 4, 32), 0.0)
    assert without_input.backward == Curve(lines=((WEIGHT, 0.0),))


def test_the_peak_of_a_backward_of_two_operations() -> None:
    # The backward of the sigmoid reads the sigmoid's output (96 floats per sample) and allocates its gradient.
    module = nn.Sequential(nn.Linear(NARROW, WIDE, bias=False), nn.Sigmoid())
    found = temporaries(run_of(module), (1, 32), 0.0).backward
    whole = {samples: 4 * WIDE * samples + WEIGHT + 4 * NARROW * samples for samples in (1, 32)}
    for samples, most in whole.items():
        # The caller holds the outputs, so nothing that the backward allocates can be freed before the peak.
        assert found(samples) == most


def test_a_forward_allocates_what_it_does_not_save() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2) + 1  # the backward does not need the product

    found = temporaries(run_of(Twice()), (1, 32), 0.0)
    assert found.forward == Curve(lines=((0.0, 4.0 * NARROW),))


def test_gradients_do_not_change_and_refused_batch_sizes_are_left_out() -> None:
    module = nn.Sequential(nn.Linear(NARROW, NARROW), nn.BatchNorm1d(NARROW))
    found = temporaries(run_of(module), (1, 2, 32), 0.0)
    assert found.backward(16) > 4 * NARROW * 16
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_loss_saves_what_its_gradient_needs() -> None:
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
    last = costs.rows[-1].temporaries
    assert last is not None
    # It saves the logarithms of the probabilities, and a single number.
    assert last.loss_bytes_per_sample == pytest.approx(4 * WIDE, abs=1)
    graph = capture(model, x)
    without_loss = profile(model, name_inputs([each.name for each in graph.inputs], x), Cluster.preset("local:1"),
                     batch_sizes=(8,), effort=Effort(repeats=1, most=1, seconds=0.0))  # fmt: skip
    assert without_loss.rows[-1].temporaries is not None
    assert without_loss.rows[-1].temporaries.loss_bytes_per_sample == 0
