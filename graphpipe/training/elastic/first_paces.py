"""Finds the device that is slow from the first step of a run: nothing before shows that it was ever faster.

rank   predicted   measured   measured / predicted
 0       0.10 s     0.21 s       2.1                    all ranks take about twice as long as predicted,
 1       0.30 s     0.60 s       2.0                    because they share the machine
 2       0.20 s     1.90 s       9.5                    4.6 times the median of the others: its device is slow
"""

from collections.abc import Mapping
from statistics import median

from graphpipe.training.telemetry.event import PaceEvent
from graphpipe.training.telemetry.slow_rank import LOST_SECONDS, TIMES


def slow_from_start(paces: Mapping[int, PaceEvent]) -> dict[int, float]:
    """Return which ranks are slow, and how many times as long they compute as the others would.

    A rank is slow if its measured time over its predicted time is at least `TIMES` the median of the other ranks, and
    if that has cost `LOST_SECONDS` in the steps that were measured.

    Args:
        paces: of all ranks of a plan. Ranks that are predicted to compute nothing are left out.
    """
    ratios = {rank: each.seconds / each.predicted_seconds for rank, each in paces.items() if each.predicted_seconds > 0}
    found: dict[int, float] = {}
    for rank, ratio in ratios.items():
        others = [each for other, each in ratios.items() if other != rank]
        usual = median(others) if others else 0.0
        pace = paces[rank]
        lost = (pace.seconds - usual * pace.predicted_seconds) * pace.steps
        if usual > 0 and ratio >= TIMES * usual and lost >= LOST_SECONDS:
            found[rank] = ratio / usual
    return found
