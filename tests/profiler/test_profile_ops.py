"""Fitted curves against exactly known times: only the operators advance the clock."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from graphpipe.devices.device_kind import DeviceClock
from graphpipe.errors import InvalidInput
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.profile_ops import WINDOW_BYTES, profile_ops


@dataclass
class Clock:
    """Advances only by `work`."""

    time: float = 0.0
    readings: int = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.time

    def work(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakeOp:
    """Computes weight * rows in given times (fixed, per sample) of forward, input gradient and weight gradient."""

    clock: Clock
    forward: tuple[float, float] = (1.0, 0.5)
    input_gradient: tuple[float, float] = (2.0, 0.25)
    weight_gradient: tuple[float, float] = (4.0, 0.5)
    weight: torch.Tensor = field(default_factory=lambda: torch.ones(3, requires_grad=True))
    calls: int = 0

    def __call__(self, values):
        self.calls += 1
        rows = values["rows"]
        self.clock.work(self.forward[0] + self.forward[1] * len(rows))
        timed_rows = _Timed.apply(rows, self.clock, self.input_gradient, len(rows))
        return [timed_rows * _Timed.apply(self.weight, self.clock, self.weight_gradient, len(rows))]


class _Timed(torch.autograd.Function):
    """The identity; its backward takes fixed + slope * samples seconds."""

    @staticmethod
    def forward(ctx, tensor, clock, line, samples):
        ctx.work = lambda: clock.work(line[0] + line[1] * samples)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.work()
        return gradient, None, None, None


def run(op, name):
    return OpRun(
        op=name,
        call=op,
        inputs={"rows": torch.ones(4, 3)},
        differentiable=frozenset({"rows"}),
        parameters=(op.weight,) if op.weight.requires_grad else (),
        signature=name,
    )


def profile(op, clock, *, differentiable=True, parameters=True, batch_sizes=(1, 2, 4, 8), equal=1, saved=0.0):
    runs = [
        OpRun(
            op=f"op{index}",
            call=op,
            inputs={"rows": torch.ones(max(batch_sizes), 3)},
            differentiable=frozenset({"rows"} if differentiable else ()),
            parameters=(op.weight,) if parameters else (),
            signature="the same",
            saved_bytes_per_sample=saved,
        )
        for index in range(equal)
    ]
    return profile_ops(iter(runs), "cpu", batch_sizes, Effort(repeats=3, seconds=0.0, clock=clock))


def test_an_affine_operator_is_recovered_exactly():
    clock = Clock()
    (row,) = profile(FakeOp(clock), clock)
    assert (row.op, row.device_type, row.source) == ("op0", "cpu", "profiled")
    assert row.error == pytest.approx(0.0, abs=1e-9)
    for samples in (1, 3, 64):
        assert row.forward(samples) == pytest.approx(1.0 + 0.5 * samples)
        # The whole backward takes 6 + 0.75 n seconds: 4 * 6 + 0.75 * 15 = 35.25 seconds over the four batch sizes. The
        # input gradient takes 4 * 2 + 0.25 * 15 = 11.75 of them, a third.
        assert row.input_gradient(samples) == pytest.approx((6.0 + 0.75 * samples) / 3)
        assert row.weight_gradient(samples) == pytest.approx((6.0 + 0.75 * samples) * 2 / 3)


def test_without_parameters_the_backward_is_all_input_gradient():
    clock = Clock()
    op = FakeOp(clock, weight=torch.ones(3))
    (row,) = profile(op, clock, parameters=False)
    assert row.input_gradient(4) == pytest.approx(2.0 + 0.25 * 4)
    assert row.weight_gradient(4) == 0.0


def test_at_model_inputs_the_backward_is_all_weight_gradient():
    clock = Clock()
    (row,) = profile(FakeOp(clock), clock, differentiable=False)
    assert row.weight_gradient(4) == pytest.approx(4.0 + 0.5 * 4)
    assert row.input_gradient(4) == 0.0


def test_a_frozen_operator_at_model_inputs_has_no_backward():
    clock = Clock()
    (row,) = profile(FakeOp(clock, weight=torch.ones(3)), clock, differentiable=False, parameters=False)
    assert row.forward(4) == pytest.approx(3.0)
    assert row.input_gradient(4) == row.weight_gradient(4) == 0.0


def test_the_halves_of_a_split_backward_are_measured_as_they_run():
    # They were once taken for the parts of the whole backward, and took twice as long in training.
    clock = Clock()
    (row,) = profile(FakeOp(clock), clock)
    assert row.measured_samples == (1, 8)
    assert row.halves is not None
    assert row.halves.input(4) == pytest.approx(2.0 + 0.25 * 4)
    assert row.halves.weight(4) == pytest.approx(4.0 + 0.5 * 4)
    # A half never takes less than its part of the whole backward, which is a third here at every size.
    assert row.input_half(16) == pytest.approx((6.0 + 0.75 * 16) / 3)
    assert row.weight_half(1) == pytest.approx(max(4.0 + 0.5, (6.0 + 0.75) * 2 / 3))


class Behind(DeviceClock):
    """The clock of a device that does its work some time after the host has queued it, and knows times only then."""

    def __init__(self, queued: Clock) -> None:
        self.queued, self.settled, self.waits = queued, True, 0

    def now(self):
        self.settled = False
        return self.queued.time

    def settle(self) -> None:
        self.settled = True
        self.waits += 1

    def seconds(self, start: Any, end: Any) -> float:
        assert self.settled, "the device has not come so far"
        return end - start


def test_a_device_is_timed_by_its_own_clock_without_a_wait_for_each_operator():
    """The host waited for a GPU before and after each operator, and timed the waits too."""
    device, host = Clock(), Clock()
    behind, runs = Behind(device), [run(FakeOp(device), name) for name in ("one", "two")]
    effort = Effort(repeats=3, most=3, clock=host, device_clock=behind)
    for row in profile_ops(runs, "gpu", (1, 4), effort):
        assert row.forward(4) == pytest.approx(1.0 + 0.5 * 4)
        assert row.halves is not None
        assert row.halves.weight(4) == pytest.approx(4.0 + 0.5 * 4)
    assert behind.waits == 3 * 2 + 2  # once for each pass over all operators, and where they are tried
    assert host.time == 0


@pytest.mark.parametrize(("warm_up", "forward"), [(600.0, 1.0 + 0.5 * 4), (0.0, 2 * (1.0 + 0.5 * 4))])
def test_a_device_warms_up_before_it_is_measured(warm_up, forward):
    """A GPU that was idle runs at a lower frequency at first."""
    clock = Clock()

    class SlowAtFirst(FakeOp):
        def __call__(self, values):
            if clock.time < 500:
                clock.work(1.0 + 0.5 * len(values["rows"]))
            return super().__call__(values)

    effort = Effort(repeats=1, most=1, clock=clock, warm_up_seconds=warm_up)
    (row,) = profile_ops([run(SlowAtFirst(clock), "op")], "gpu", (1, 4), effort)
    assert row.forward(4) == pytest.approx(forward)


def test_what_every_operator_takes_by_itself_is_subtracted():
    # The sum of all operators of mmt-small was 10 to 20 % more than its stages took in training.
    clock = Clock()
    op = FakeOp(clock, forward=(1.25, 0.5), input_gradient=(2.5, 0.25))
    passes_on = FakeOp(clock, forward=(0.25, 0.0), input_gradient=(0.5, 0.0), weight=torch.ones(3))
    runs = [run(each, name) for name, each in (("op", op), ("second", op), ("quick", FakeOp(clock, (0.3, 0.0))))]
    rows = profile_ops(runs, "cpu", (1, 4), Effort(repeats=3, seconds=0.0, clock=clock), empty=run(passes_on, "empty"))
    assert [row.op for row in rows] == ["op", "second", "quick"]
    assert rows[0].forward(4) == pytest.approx(1.0 + 0.5 * 4)
    assert rows[0].input_gradient(4) + rows[0].weight_gradient(4) == pytest.approx(6.0 + 0.75 * 4)
    assert rows[2].forward(4) == pytest.approx(0.05)


def test_an_operator_keeps_a_tenth_of_its_time():
    clock = Clock()
    passes_on = FakeOp(clock, forward=(5.0, 0.0), input_gradient=(0.0, 0.0), weight=torch.ones(3))
    effort = Effort(repeats=3, seconds=0.0, clock=clock)
    (row,) = profile_ops([run(FakeOp(clock), "op")], "cpu", (1, 4), effort, empty=run(passes_on, "empty"))
    assert row.forward(4) == pytest.approx(0.1 * (1.0 + 0.5 * 4))


@pytest.mark.parametrize(("saved", "measured"), [(0.0, 3), (WINDOW_BYTES / 8 / 2, 2), (WINDOW_BYTES / 8, 1)])
def test_equal_operators_share_one_cost_and_are_not_measured_in_later_windows(saved, measured):
    clock = Clock()
    op = FakeOp(clock)
    rows = profile(op, clock, equal=3, saved=saved)
    assert [row.op for row in rows] == ["op0", "op1", "op2"]
    assert rows[0].forward == rows[1].forward == rows[2].forward
    # Four batch sizes are tried with a forward, the first with two more for its backwards. Then each is repeated
    # three times, with three forwards every time.
    assert op.calls == measured * (4 + 2 + 4 * 3 * 3)


def test_operators_are_timed_in_the_order_of_training():
    clock, done = Clock(), list[str]()

    class Traced(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, name):
            ctx.name = name
            done.append(f"F {name}")
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):
            done.append(f"B {ctx.name}")
            return gradient, None

    runs = [
        OpRun(
            op=name,
            call=lambda values, name=name: [Traced.apply(values["rows"], name)],
            inputs={"rows": torch.ones(1, 2)},
            differentiable=frozenset({"rows"}),
            signature=name,
        )
        for name in "ab"
    ]
    profile_ops(runs, "cpu", (1,), Effort(repeats=1, most=1, seconds=0.0, clock=clock))
    # First each operator runs separately, to see whether it accepts the batch. Then both are timed.
    separately = ["F a", "B a"] * 3 + ["F b", "B b"] * 3
    assert done == separately + ["F a", "F b", "B b", "B a"] * 3


def test_an_operator_that_works_in_place_does_not_change_the_inputs():
    rows = torch.full((4, 2), -1.0)
    run = OpRun(
        op="relu",
        call=lambda values: [values["rows"].relu_()],
        inputs={"rows": rows},
        differentiable=frozenset({"rows"}),
        signature=None,
    )
    (row,) = profile_ops([run], "cpu", (1, 4), Effort(repeats=3, seconds=0.0))
    assert row.forward(4) > 0
    assert row.input_gradient(4) > 0
    assert torch.equal(rows, torch.full((4, 2), -1.0))


def refuse_fewer_than(least, clock):
    def call(values):
        if len(values["rows"]) < least:
            raise ValueError("Expected more than 1 value per channel")
        clock.work(1.0 + len(values["rows"]))
        return [values["rows"]]

    return OpRun(op="norm", call=call, inputs={"rows": torch.ones(8, 2)}, signature=None)


def test_the_work_between_measurements_is_not_timed():
    clock, done = Clock(), list[str]()

    def other_work() -> None:
        clock.work(100.0)
        done.append("other work")

    def call(values):
        done.append("forward")
        return op(values)

    op = FakeOp(clock)
    run = OpRun(
        op="op",
        call=call,
        inputs={"rows": torch.ones(4, 3)},
        differentiable=frozenset({"rows"}),
        parameters=(op.weight,),
        signature=None,
    )
    (row,) = profile_ops([run], "cpu", (4,), Effort(repeats=1, most=1, clock=clock, between=other_work))
    assert row.forward(4) == pytest.approx(3.0)
    assert row.input_gradient(4) + row.weight_gradient(4) == pytest.approx(9.0)
    # Forward and whole backward, forward and input gradient, then forward and two halves: all are tried and timed.
    pair = ["other work", "forward", "other work"]
    assert done == [*pair, *pair, *pair, "other work"] * 2


def test_a_batch_that_an_operator_refuses_is_left_out():
    clock = Clock()
    (row,) = profile_ops([refuse_fewer_than(2, clock)], "cpu", (1, 2, 8), Effort(repeats=3, seconds=0.0, clock=clock))
    assert row.forward.lines == (pytest.approx((1.0, 1.0)),)


def test_an_operator_that_refuses_every_batch_is_named_with_its_reason():
    with pytest.raises(InvalidInput, match="operator 'norm': cannot be run on 1 samples: Expected more than 1"):
        profile_ops([refuse_fewer_than(99, Clock())], "cpu", (1, 2))


def test_the_mean_counts_a_spike_as_twice_the_median():
    durations = iter([1.0, 2.0, 50.0, 2.5, 1.5])
    assert Effort(repeats=3, seconds=0.0, clock=Clock()).sample(lambda: (next(durations),)) == (11.0 / 5,)
    assert next(durations, None) is None


def test_measurements_that_agree_are_not_repeated():
    durations = iter([1.0, 1.05, 1.01, 50.0])
    assert Effort(repeats=3, seconds=0.0, clock=Clock()).sample(lambda: (next(durations),)) == pytest.approx((1.02,))


def test_effort_repeats_until_the_time_is_up():
    clock = Clock()
    times = []

    def once():
        clock.work(1.0)
        times.append(clock.time)
        return (1.0,)

    Effort(repeats=2, most=100, seconds=10.0, clock=clock).sample(once)
    assert len(times) == 10  # of a second each
    times.clear()
    Effort(repeats=2, most=4, seconds=10.0, clock=clock).sample(once)
    assert len(times) == 4


@pytest.mark.parametrize("saved", [0.0, WINDOW_BYTES])
def test_progress_counts_operators_and_never_goes_back(saved):
    clock = Clock()
    runs = [
        OpRun(
            op=f"op{index}",
            call=(op := FakeOp(clock)),
            inputs={"rows": torch.ones(8, 3)},
            parameters=(op.weight,),
            signature=index,
            saved_bytes_per_sample=saved,
        )
        for index in range(4)
    ]
    seen: list[float] = []
    profile_ops(iter(runs), "cpu", (1, 8), Effort(seconds=0.0, clock=clock), on_progress=seen.append)
    assert seen == sorted(seen)
    assert 0.0 < seen[0] < 1.0
    assert seen[-1] == 4.0
    assert len(seen) == 4 + 3 * 2 * (4 if saved else 1) + 1  # operators, and batch sizes of three repeats per window
