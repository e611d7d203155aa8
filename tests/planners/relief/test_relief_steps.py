"""The steps of the search for relief, by hand: what is left to free, which choices go on, and how many.

Micro-batches have two samples, and six are in flight. To offload a byte of each sample takes 2 x 2 / 4 = 1 s. It frees
2 of 6 bytes, because two micro-batches are on the device.
"""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from graphpipe.planners.relief.choices import KEEP, OFFLOAD, RECOMPUTE, Choices
from graphpipe.planners.relief.relief import Relief, _fewer
from graphpipe.planners.relief.stage_ops import StageOps
from graphpipe.plans.device_memory import stage_memory
from tests.planners.relief.test_relief import IN_FLIGHT, MICRO, one_stage

SAVED, FORWARD = [2.0, 4.0, 8.0], [3.0, 3.0, 20.0]
"""The last two operators keep 24 and 48 bytes. To recompute them takes 6 s, 1/4 s a byte, and 40 s, 5/6 s a byte."""


def relief(*, window: float = 3.0, offloads: bool = True, in_flight: int = IN_FLIGHT) -> Relief:
    plan = one_stage(FORWARD, SAVED, [0.0] * 3, [])
    stage = replace(plan.stages[0], in_flight=in_flight)
    return Relief(plan=replace(plan, stages=(stage,)), stage=stage, window_seconds=window, offloads=offloads)


def ops_of(it: Relief, *, limited: bool = False) -> StageOps:
    return StageOps.of(it.plan, it.stage, it.stage.ops, it.window_seconds, offloads=it.offloads, limited=limited)


def decided(*first: int, seconds: tuple[float, ...] = (), copied: tuple[float, ...] = ()) -> Choices:
    """Return choices for the first of three operators."""
    none = np.zeros(len(first))
    return Choices(
        decisions=np.array([[each, 0, 0] for each in first], np.int8),
        seconds=np.array(seconds) if seconds else none,
        bytes=none,
        copied=np.array(copied) if copied else none,
        region=none,
        offloaded=none,
    )


@pytest.mark.parametrize(
    ("first", "seconds", "copied", "spare", "least"),
    [
        # 72 bytes that are not decided and 12 that the second operator may hold. 3 s of copies, 6 bytes, are hidden.
        (KEEP, 0, 0, 84, 0),
        (KEEP, 0, 0, 80, 0),
        (KEEP, 0, 0, 60, 18 / 4),
        (KEEP, 0, 0, 0, inf),
        (OFFLOAD, 1, 2, 60, 1 + 22 / 4),  # only 1 s of copies is hidden
        (OFFLOAD, 1, 2, 5, 1 + 6 + (77 - 24) / 2),  # 12 bytes may still leave
        (OFFLOAD, 1, 2, -1, inf),
        (RECOMPUTE, 6, 0, 20, 6 + 6 + (46 - 24) / 2),
    ],
)
def test_what_is_left_to_free_takes_at_least_so_long(
    first: int, seconds: float, copied: float, spare: float, least: float
) -> None:
    it = relief()
    choices = decided(KEEP, first, seconds=(0.0, seconds), copied=(0.0, copied))
    found = it._least_seconds(ops_of(it), 0, choices, np.array([60.0, spare]))
    assert found.tolist() == pytest.approx([18 / 4, least], rel=1e-8)
    assert found[1] <= least


def test_nothing_is_freed_by_copies_if_none_are_made_or_all_samples_stay() -> None:
    for it, samples in ((relief(offloads=False), 6), (relief(in_flight=2), 2)):
        # Of 14 bytes of each sample, 4 take 6 s in all, and each of the 8 after them 40 / 8 s.
        found = it._least_seconds(ops_of(it), 0, decided(KEEP, KEEP), np.array([10 * samples, 9 * samples]))
        assert found.tolist() == pytest.approx([6, 6 + 40 / 8])


@pytest.mark.parametrize(
    ("capacity", "limit"), [(60.0, inf), (60.0, 50.0), (45.0, inf), (90.0, 7.0), (200.0, 1.0), (200.0, inf)]
)
def test_an_exact_search_keeps_every_choice_that_fits_below_the_limit(capacity: float, limit: float) -> None:
    plan = one_stage(FORWARD, SAVED, [1.0, 2.0, 3.0], [0])
    it = Relief(plan=plan, stage=plan.stages[0], window_seconds=3.0, most_offloaded=48.0)
    order, wanted = plan.stages[0].ops, list[tuple[int, ...]]()
    for ways in product((KEEP, OFFLOAD, RECOMPUTE), repeat=3):
        stage = it._decided(order, ways)
        if it._fits(stage, capacity) and it.added_seconds(stage) < limit:
            wanted.append(ways)
    found = it._choices(order, capacity, limit, exact=True)
    assert [tuple(each) for each in found.decisions.tolist()] == wanted
    for at, ways in enumerate(wanted):
        stage = it._decided(order, ways)
        assert found.seconds[at] == pytest.approx(it.added_seconds(stage))
        bytes_ = stage_memory(plan.cost_model, stage).total(IN_FLIGHT) - 4 * 3
        assert found.bytes[at] + found.region[at] == pytest.approx(bytes_)
    # Of these, the other search drops only what another one beats.
    fewer = it._choices(order, capacity, limit, exact=False)
    assert {tuple(each) for each in fewer.decisions.tolist()} <= {*wanted}
    assert min(fewer.seconds, default=inf) == min(found.seconds, default=inf)
    assert MICRO == 2


def test_of_many_ways_to_decide_some_are_continued() -> None:
    ways = [*product((KEEP, RECOMPUTE), repeat=3)]
    none = np.zeros(16)
    # Each way twice: the second takes less time and more bytes, so neither is beaten.
    choices = Choices(
        decisions=np.array([way for way in ways for _ in range(2)], np.int8),
        seconds=np.array([2.0, 1.0] * 8),
        bytes=np.array([1.0, 2.0] * 8),
        copied=none,
        region=none,
        offloaded=none,
    )
    ops = ops_of(relief())
    assert len(_fewer(ops, choices, [0, 1, 2], 16)) == 16
    # Eight ways are more than half of 8. Four go on, from the one that keeps least (nothing) to all 14 bytes.
    found = _fewer(ops, choices, [0, 1, 2], 8)
    kept = [
        sum(size for size, way in zip(SAVED, each, strict=True) if way == KEEP) for each in found.decisions.tolist()
    ]
    assert sorted({*kept}) == [0, 4, 10, 14]
    assert len(found) == 8
    # Without operators that others read later, all are of one way: at most so many, at equal distances in bytes.
    assert len(_fewer(ops, choices, [], 16)) == 2
    assert len(_fewer(ops, choices.only(np.zeros(0, np.intp)), [0], 16)) == 0


@pytest.mark.parametrize(("each", "kept"), [(4, 4), (8, 8), (9, 8), (30, 8)])
def test_the_choices_of_few_ways_share_what_is_kept(each: int, kept: int) -> None:
    # Two ways to decide about the first operator. The less seconds a choice takes, the more bytes, so none is beaten.
    none = np.zeros(2 * each)
    choices = Choices(
        decisions=np.array([[way, 0, 0] for way in (KEEP, RECOMPUTE) for _ in range(each)], np.int8),
        seconds=np.tile(np.arange(each, dtype=np.float64), 2),
        bytes=np.tile(np.arange(each, 0, -1, dtype=np.float64), 2),
        copied=none,
        region=none,
        offloaded=none,
    )
    found = _fewer(ops_of(relief()), choices, [0], 16)
    assert found.decisions[:, 0].tolist() == [KEEP] * kept + [RECOMPUTE] * kept


def test_a_stage_that_just_fits_if_it_recomputes_everything() -> None:
    plan = one_stage(FORWARD, SAVED, [9.0] * 3, [])
    it = Relief(plan=plan, stage=plan.stages[0], window_seconds=0.0, offloads=False)
    found = it.fitted(4 * 3 + 2 * 14)  # the state, and what two samples save
    assert found is not None
    assert found.recompute == "full"
    assert it.fitted(4 * 3 + 2 * 14 - 0.5) is None
