"""Whether stages may fit in memory, before they are searched."""

import numpy as np
import pytest

from graphpipe.planners.baselines.stage_cuts import BottleneckSearch, StageCuts


def cuts(*rows: tuple[int, int, float, int]) -> StageCuts:
    """Cuts of one downset by what remains, devices, seconds and limit. Each counts as one stage."""
    below, devices, seconds, limit = (list(column) for column in zip(*rows, strict=True))
    counts = np.array(limit, np.int32)
    return StageCuts(
        np.array(below), np.array(devices), np.array(seconds), np.ones_like(counts), counts, np.zeros(len(rows), bool)
    )


@pytest.mark.parametrize(
    ("devices", "limit", "fits"),
    [
        (3, 2, True),
        (2, 2, False),  # The last stage fits on two devices only, so two stages need three.
        (3, 1, False),  # The first stage fits only if it is the last.
    ],
)
def test_nothing_fits_on_too_few_devices_or_in_too_many_stages(devices: int, limit: int, fits: bool) -> None:
    found = BottleneckSearch([cuts((0, 1, 1.0, 0), (0, 2, 0.5, 1)), cuts((1, 1, 1.0, limit))], devices)
    assert found.may_fit == fits
    assert all(cut.fits for cut in found.solve()) == fits


def test_what_may_fit_by_each_bound_alone_need_not_fit() -> None:
    # The fewest devices and the smallest count of the last two operators are those of different stages.
    last, both = cuts((0, 1, 1.0, 1)), cuts((1, 1, 1.0, 2), (0, 3, 0.4, 1))
    found = BottleneckSearch([last, both, cuts((2, 1, 1.0, 2))], 3)
    assert found.may_fit
    assert not found.fewest(1.0)
    assert not all(cut.fits for cut in found.solve())
