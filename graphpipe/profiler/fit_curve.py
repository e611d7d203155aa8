"""A line through measured times: how a curve of the cost table is made from a profile."""

from collections.abc import Mapping

import numpy as np

from graphpipe.costs.op_cost import Curve


def fit_curve(seconds: Mapping[int, float] | Mapping[float, float]) -> Curve:
    """Return the line `fixed + slope * samples`, both at least 0, nearest to measured seconds by samples (or bytes).

    The fit minimises the squared relative error, so that a small batch counts as much as a large one. A single
    measurement gives a line through the origin. If all measurements are 0, the curve is empty.
    """
    measured = np.array(list(seconds.values()))
    if not measured.any():
        return Curve()
    # Each row is divided by its measurement, so that `terms @ line - 1` is the relative error.
    terms = np.array([[1.0, samples] for samples in seconds]) / measured[:, None]
    ones = np.ones(len(terms))
    # Candidates: a line with fixed = 0, one with slope = 0, and the unconstrained optimum if neither part is negative.
    candidates = [np.array([0.0, _factor(terms[:, 1])])]
    if len(terms) > 1:
        free = np.linalg.lstsq(terms, ones, rcond=None)[0]
        candidates += [np.array([_factor(terms[:, 0]), 0.0])] + [free] * bool((free >= 0).all())
    fixed, slope = min(candidates, key=lambda line: float(np.square(terms @ line - ones).sum()))
    return Curve(lines=((float(fixed), float(slope)),))


def relative_error(curve: Curve, seconds: Mapping[int, float]) -> float:
    """Return the largest error of the curve on its measurements, as a share of the measured seconds."""
    return max((abs(curve(samples) / measured - 1) for samples, measured in seconds.items() if measured), default=0.0)


def _factor(term: np.ndarray) -> float:
    # The x for which x * term is nearest to 1.
    return float(term.sum() / np.square(term).sum())
