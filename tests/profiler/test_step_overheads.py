"""What a step costs besides its operators, on a clock that only the timed code advances."""

import pytest
import torch
from torch import nn

from graphpipe.profiler.effort import Effort
from graphpipe.profiler.empty_run import empty_run
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.step_overheads import optimizer_of_copies, profile_optimizer, profile_task_overhead


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Slow(torch.autograd.Function):
    """Passes its input on; its backward takes three seconds."""

    @staticmethod
    def forward(ctx, tensor, clock):
        ctx.clock = clock
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.time += 3.0
        return gradient, None


class Step(torch.optim.SGD):
    """An optimizer whose step takes two seconds."""

    clock: Clock

    def step(self, closure=None):
        self.clock.time += 2.0
        return super().step(closure)


def effort(clock: Clock) -> Effort:
    def other_work() -> None:
        clock.time += 100.0

    return Effort(repeats=3, seconds=0.0, clock=clock, between=other_work)


def test_a_task_enters_its_stage_and_starts_its_backward_once():
    clock = Clock()

    def call(values):
        clock.time += 1.0
        return [Slow.apply(values["rows"], clock)]

    empty = OpRun(op="empty", call=call, inputs={"rows": torch.zeros(2, 1)}, signature="empty")
    assert profile_task_overhead(empty, effort(clock)) == pytest.approx((1.0 + 3.0) / 2)


def test_only_the_optimizer_is_timed():
    clock = Clock()
    Step.clock = clock
    weight = nn.Parameter(torch.zeros(5))
    stepper = optimizer_of_copies([weight], lambda parameters: Step(parameters, lr=0.1))
    found = profile_optimizer(stepper, effort(clock))
    assert found.seconds_per_parameter_byte == pytest.approx(2.0 / 20)


def test_an_empty_operator_passes_rows_on_and_gradients_back():
    empty = empty_run(4, torch.device("cpu"), "bf16")
    leaves, entered = empty.enter(3)
    (out,) = empty.call(entered)
    assert out.shape == (3, 1)
    out.backward(torch.full((3, 1), 2.0))
    assert leaves[0].grad is not None
    assert torch.equal(leaves[0].grad, torch.full((3, 1), 2.0))
