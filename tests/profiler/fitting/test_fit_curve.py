"""Curves through measured times, against sums by hand and against lines near by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.costs.op_cost import Curve
from graphpipe.profiler.fitting.fit_curve import fit_curve, fit_line, relative_error

AMOUNTS = st.floats(1e-6, 1e3)
TIMES = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(1e-5, 1.0), min_size=1)


def squares(curve: Curve, seconds: dict[int, float]) -> float:
    return sum((curve(samples) / measured - 1) ** 2 for samples, measured in seconds.items())


def test_measured_times_that_rise_faster_and_faster_are_on_the_curve() -> None:
    """A line through 2 and 8 samples was 12 % off, because its fixed part may not be negative."""
    seconds = {2: 1.0, 8: 5.0}
    assert relative_error(fit_line(seconds), seconds) == pytest.approx(0.122, abs=0.001)
    curve = fit_curve(seconds)
    assert relative_error(curve, seconds) < 1e-9
    assert curve(1) == pytest.approx(0.5)  # through the origin
    assert curve(5) == pytest.approx(3.0)  # half way between
    assert curve(14) == pytest.approx(9.0)  # on with the last slope
    fixed = {1: 3.0, 2: 4.0, 4: 6.0, 8: 14.0}  # 2 + n, and from 4 samples on 2 a sample
    assert relative_error(fit_curve(fixed), fixed) < 1e-9
    assert fit_curve(fixed)(0.5) == pytest.approx(2.5)


def test_a_kernel_that_works_better_on_more_samples_is_one_line() -> None:
    seconds = {1: 1.0, 2: 1.5, 4: 2.0, 8: 2.5}
    assert fit_curve(seconds) == fit_line(seconds)
    assert len(fit_curve(seconds).lines) == 1
    assert fit_curve({4: 0.5}) == Curve(lines=((0.0, 0.125),))
    assert fit_curve({1: 0.0, 2: 0.0}) == Curve()


@given(fixed=AMOUNTS, slope=AMOUNTS)
def test_a_line_is_fitted_exactly(fixed: float, slope: float) -> None:
    seconds = {samples: fixed + slope * samples for samples in (1, 2, 8, 32)}
    assert relative_error(fit_curve(seconds), seconds) < 1e-6


@given(seconds=st.dictionaries(st.integers(1, 256), AMOUNTS, min_size=1, max_size=6))
def test_the_line_is_the_nearest_one_that_is_never_negative(seconds: dict[int, float]) -> None:
    ((fixed, slope),) = fit_line(seconds).lines
    assert fixed >= 0
    assert slope >= 0
    best = squares(fit_line(seconds), seconds)
    if len(seconds) > 1:
        for nudge in (0.9, 1.1):
            assert best <= squares(Curve(lines=((fixed * nudge, slope),)), seconds) + 1e-9
            assert best <= squares(Curve(lines=((fixed, slope * nudge),)), seconds) + 1e-9
    assert best <= len(seconds)


def test_the_error_is_the_largest_relative_error() -> None:
    # Times that fall as samples grow need a slope of 0: the best constant for 4 and 2 is 2.4.
    seconds = {1: 4.0, 2: 2.0}
    curve = fit_curve(seconds)
    assert curve.lines == (pytest.approx((2.4, 0.0)),)
    assert relative_error(curve, seconds) == pytest.approx(0.4)


@given(seconds=TIMES)
@settings(max_examples=25)
def test_a_curve_is_convex_and_never_farther_from_the_measurements_than_a_line(seconds: dict[int, float]) -> None:
    curve = fit_curve(seconds)
    assert squares(curve, seconds) <= squares(fit_line(seconds), seconds) * (1 + 1e-9) + 1e-12
    values = [curve(samples) for samples in range(33)]
    rises = np.diff(values[1:])
    assert min(values) >= 0
    assert (np.diff(rises) >= -1e-9 * max(values)).all()  # convex
    assert (rises >= 0).all()
