"""The profiler: fits against timings known exactly, with a clock that only the operators move."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.profiler.fit_curve import fit_curve, relative_error
from graphpipe.profiler.profile_ops import WINDOW_BYTES, Effort, OpRun, profile_ops


@dataclass
class Clock:
    """Stands still until somebody works."""

    time: float = 0.0
    readings: int = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.time

    def work(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakeOp:
    """weight * rows, which takes the seconds it is told to: forward, input gradient, weight gradient."""

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
    """The identity, whose backward takes fixed + slope * samples seconds."""

    @staticmethod
    def forward(ctx, tensor, clock, line, samples):
        ctx.work = lambda: clock.work(line[0] + line[1] * samples)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.work()
        return gradient, None, None, None


def profile(op, clock, *, differentiable=True, parameters=True, batch_sizes=(1, 2, 4, 8), twins=1, kept=0.0):
    runs = [
        OpRun(
            op=f"op{index}",
            call=op,
            inputs={"rows": torch.ones(max(batch_sizes), 3)},
            differentiable=frozenset({"rows"} if differentiable else ()),
            parameters=(op.weight,) if parameters else (),
            twin="the same",
            kept_bytes_per_sample=kept,
        )
        for index in range(twins)
    ]
    return profile_ops(iter(runs), "cpu", batch_sizes, Effort(repeats=3, seconds=0.0, clock=clock))


def test_an_affine_operator_is_recovered_exactly():
    clock = Clock()
    (row,) = profile(FakeOp(clock), clock)
    assert (row.op, row.device_type, row.source) == ("op0", "cpu", "profiled")
    assert row.error == pytest.approx(0.0, abs=1e-9)
    for samples in (1, 3, 64):
        assert row.forward(samples) == pytest.approx(1.0 + 0.5 * samples)
        # The whole backward is 6 + 0.75 n, divided as the input gradient's share over the batch sizes: of
        # 4 * 6 + 0.75 * 15 = 35.25 in all, 4 * 2 + 0.25 * 15 = 11.75 seconds.
        assert row.input_gradient(samples) == pytest.approx((6.0 + 0.75 * samples) / 3)
        assert row.weight_gradient(samples) == pytest.approx((6.0 + 0.75 * samples) * 2 / 3)


def test_without_parameters_the_backward_is_all_input_gradient():
    clock = Clock()
    op = FakeOp(clock, weight=torch.ones(3))
    (row,) = profile(op, clock, parameters=False)
    assert row.input_gradient(4) == pytest.approx(2.0 + 0.25 * 4)
    assert row.weight_gradient(4) == 0.0


def test_at_the_models_inputs_the_backward_is_all_weight_gradient():
    clock = Clock()
    (row,) = profile(FakeOp(clock), clock, differentiable=False)
    assert row.weight_gradient(4) == pytest.approx(4.0 + 0.5 * 4)
    assert row.input_gradient(4) == 0.0


def test_a_frozen_operator_at_the_models_inputs_has_no_backward():
    clock = Clock()
    (row,) = profile(FakeOp(clock, weight=torch.ones(3)), clock, differentiable=False, parameters=False)
    assert row.forward(4) == pytest.approx(3.0)
    assert row.input_gradient(4) == row.weight_gradient(4) == 0.0


@pytest.mark.parametrize(("kept", "measured"), [(0.0, 3), (WINDOW_BYTES / 8 / 2, 2), (WINDOW_BYTES / 8, 1)])
def test_twins_have_one_cost_and_those_of_later_windows_are_not_measured(kept, measured):
    clock = Clock()
    op = FakeOp(clock)
    rows = profile(op, clock, twins=3, kept=kept)
    assert [row.op for row in rows] == ["op0", "op1", "op2"]
    assert rows[0].forward == rows[1].forward == rows[2].forward
    # Four batch sizes; each tried, warmed up and repeated three times, two forwards in each.
    assert op.calls == measured * 4 * (1 + 1 + 3) * 2


def test_operators_are_timed_as_training_runs_them():
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
            twin=name,
        )
        for name in "ab"
    ]
    profile_ops(runs, "cpu", (1,), Effort(repeats=1, most=1, seconds=0.0, clock=clock))
    # Each by itself first, which shows whether it takes the batch; then both, to warm up and to be timed.
    alone = ["F a", "B a"] * 2 + ["F b", "B b"] * 2
    assert done == alone + ["F a", "F b", "B b", "B a"] * 4


def test_an_operator_that_works_in_place_does_not_spoil_the_inputs():
    rows = torch.full((4, 2), -1.0)
    run = OpRun(
        op="relu",
        call=lambda values: [values["rows"].relu_()],
        inputs={"rows": rows},
        differentiable=frozenset({"rows"}),
        twin=None,
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

    return OpRun(op="norm", call=call, inputs={"rows": torch.ones(8, 2)}, twin=None)


def test_what_leaves_the_caches_as_other_work_would_is_not_timed():
    clock, done = Clock(), list[str]()

    def stranger() -> None:
        clock.work(100.0)
        done.append("stranger")

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
        twin=None,
    )
    (row,) = profile_ops([run], "cpu", (4,), Effort(repeats=1, most=1, clock=clock, between=stranger))
    assert row.forward(4) == pytest.approx(3.0)
    assert row.input_gradient(4) + row.weight_gradient(4) == pytest.approx(9.0)
    # Forward and whole backward, forward and input gradient: tried, warmed up, and timed.
    assert done == ["stranger", "forward", "stranger"] * 6


def test_a_batch_that_an_operator_refuses_is_left_out():
    clock = Clock()
    (row,) = profile_ops([refuse_fewer_than(2, clock)], "cpu", (1, 2, 8), Effort(repeats=3, seconds=0.0, clock=clock))
    assert row.forward.lines == (pytest.approx((1.0, 1.0)),)


def test_an_operator_that_refuses_every_batch_is_named_with_its_reason():
    with pytest.raises(InvalidInput, match="operator 'norm': cannot be run on 1 samples: Expected more than 1"):
        profile_ops([refuse_fewer_than(99, Clock())], "cpu", (1, 2))


def test_the_median_ignores_an_outlier_and_the_warm_up():
    durations = iter([100.0, 1.0, 2.0, 50.0])
    assert Effort(repeats=3, seconds=0.0, clock=Clock()).sample(lambda: (next(durations),)) == (2.0,)


def test_effort_goes_on_until_the_time_is_up():
    clock = Clock()
    times = []

    def once():
        clock.work(1.0)
        times.append(clock.time)
        return (1.0,)

    Effort(repeats=2, most=100, seconds=10.0, clock=clock).sample(once)
    assert len(times) == 11  # one to warm up, then ten seconds' worth
    times.clear()
    Effort(repeats=2, most=4, seconds=10.0, clock=clock).sample(once)
    assert len(times) == 5


amounts = st.floats(1e-6, 1e3)


@given(fixed=amounts, slope=amounts)
def test_a_line_is_fitted_exactly(fixed, slope):
    seconds = {samples: fixed + slope * samples for samples in (1, 2, 8, 32)}
    curve = fit_curve(seconds)
    assert relative_error(curve, seconds) < 1e-6


@given(st.dictionaries(st.integers(1, 256), amounts, min_size=1, max_size=6))
def test_the_fit_is_never_negative_and_no_line_is_nearer(seconds):
    def misfit(fixed, slope):
        return sum(((fixed + slope * samples) / measured - 1) ** 2 for samples, measured in seconds.items())

    ((fixed, slope),) = fit_curve(seconds).lines
    assert fixed >= 0
    assert slope >= 0
    best = misfit(fixed, slope)
    if len(seconds) > 1:
        for nudge in (0.9, 1.1):
            assert best <= misfit(fixed * nudge, slope) + 1e-9
            assert best <= misfit(fixed, slope * nudge) + 1e-9
    assert best <= len(seconds)


def test_the_error_is_the_worst_relative_miss():
    # Seconds that fall with the samples cannot be fitted with a slope: the best constant for 4 and 2 is 2.4.
    seconds = {1: 4.0, 2: 2.0}
    curve = fit_curve(seconds)
    assert curve.lines == (pytest.approx((2.4, 0.0)),)
    assert relative_error(curve, seconds) == pytest.approx(0.4)


def test_one_measurement_grows_with_the_samples_and_none_is_no_curve():
    assert fit_curve({4: 2.0}).lines == (pytest.approx((0.0, 0.5)),)
    assert fit_curve({1: 0.0, 2: 0.0}).lines == ()
