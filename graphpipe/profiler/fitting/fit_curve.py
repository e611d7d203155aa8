"""Curves through measured times: how a curve of the cost table is made from a profile."""

from collections.abc import Mapping

import numpy as np

from graphpipe.costs.op_cost import Curve


def fit_line(seconds: Mapping[int, float] | Mapping[float, float]) -> Curve:
    """Return the line `fixed + slope * samples`, both at least 0, nearest to measured seconds by samples (or bytes).

    As `fit_curve`, but the slope is the same everywhere.
    """
    return _fit(seconds, [])


def fit_curve(seconds: Mapping[int, float] | Mapping[float, float]) -> Curve:
    """Return the convex curve nearest to measured seconds by samples (or bytes). Its slope changes only at these.

    It begins as a line, with a fixed part and a slope of at least 0. From a measured size on it may be steeper, for
    example because the caches are full. So measurements of which each further sample takes at least as long as the one
    before are on the curve. Where it takes less, as with a kernel that works better on more samples, the curve is one
    line.

    The fit minimises the squared relative error, so that a small batch counts as much as a large one. A single
    measurement gives a line through the origin. If all measurements are 0, the curve is empty.
    """
    sizes = sorted(seconds)
    curve = _fit(seconds, sizes[1:-1])
    if curve.lines and curve.lines[0][0] == 0:  # Then the slope may change at the first size too.
        return _fit(seconds, sizes[:-1])
    return curve


def relative_error(curve: Curve, seconds: Mapping[int, float]) -> float:
    """Return the largest error of the curve on its measurements, as a share of the measured seconds."""
    return max((abs(curve(samples) / measured - 1) for samples, measured in seconds.items() if measured), default=0.0)


def _fit(seconds: Mapping[int, float] | Mapping[float, float], corners: list[float] | list[int]) -> Curve:
    """Return the nearest curve of lines that meet at these sizes, one steeper than the other."""
    from scipy.optimize import nnls  # half a second, at the start of trainings that measure nothing

    measured = np.array(list(seconds.values()))
    if not measured.any():
        return Curve()
    sizes = np.array(list(seconds), dtype=np.float64)
    # A single measurement does not tell the fixed part from the slope.
    terms = [np.full_like(sizes, float(len(sizes) > 1)), sizes, *(np.maximum(0.0, sizes - at) for at in corners)]
    # Each row is divided by its measurement, so that `terms @ parts - 1` is the relative error.
    fixed, slope, *steeper = nnls(np.column_stack(terms) / measured[:, None], np.ones(len(sizes)))[0].tolist()
    lines = [(fixed, slope)]
    for corner, more in zip(corners, steeper, strict=True):
        if more:
            fixed, slope = fixed - more * corner, slope + more
            lines.append((fixed, slope))
    return Curve(lines=tuple(lines))
