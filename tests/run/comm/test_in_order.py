"""Transports without tags, as NCCL: posts of each pair of ranks match, and blocking messages do not deadlock."""

import random
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import run_in_order
import torch
from builders import Part, make_plan
from hypothesis import given
from hypothesis import strategies as st
from run_models import STAGES
from run_ranks import run_ranks, values
from run_scenarios import train

from graphpipe.run.comm.p2p_groups import Pair
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.warm_up_pairs import communicating_pairs, disjoint_rounds
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule

PAIRS = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1]))


def ranks_of(cut: str) -> int:
    return 1 + max(device for _, devices, _ in STAGES[cut] for device in devices)


def check_posts(ranks: list[list[str]]) -> None:
    """All ranks of a communicator, of a pair or of a group, make the same calls in the same order."""
    told: dict[str, dict[int, list[str]]] = {}
    for rank, posted in enumerate(ranks):
        for call in posted:
            what, _, group = call.partition(" in ")
            pair = sorted(map(int, what.split()[1].split(">"))) if what.startswith("message") else None
            told.setdefault(f"pair {pair}" if pair else f"group {group}", {}).setdefault(rank, []).append(call)
    assert any(key.startswith("pair") for key in told)
    for key, by_rank in told.items():
        calls = [*by_rank.values()]
        assert len(calls) > 1, f"{key} is used by rank {[*by_rank]} alone"
        assert all(each == calls[0] for each in calls), f"{key}: {by_rank}"


def check_one_queue(ranks: list[list[str]]) -> None:
    """The calls of all ranks end even if each call blocks until its last rank has made it."""
    left = [posted[::-1] for posted in ranks]
    members: dict[str, list[int]] = {}
    for rank, posted in enumerate(ranks):
        for call in posted:
            members.setdefault(call, [])
            members[call] += [rank] * (rank not in members[call])
    moved = True
    while moved:
        moved = False
        for mine in left:
            while mine and all(left[other] and left[other][-1] == mine[-1] for other in members[mine[-1]]):
                for other in members[mine[-1]]:
                    if left[other] is not mine:
                        left[other].pop()
                mine.pop()
                moved = True
    assert not any(left), f"the ranks wait forever: {[each[-1] if each else '' for each in left]}"


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("shared", {"schedule": "gpipe"}),
    ("mixed", {"clip_norm": 0.1, "norm": True}),
    ("pair", {"engine": "ddp"}),
    ("replicas", {"engine": "fsdp2", "record": True}),
]


@pytest.mark.parametrize(
    ("cut", "options"), [pytest.param(*each, marks=pytest.mark.slow if each[0] == "mixed" else []) for each in OPTIONS]
)
def test_ranks_post_alike_without_tags_and_train_alike(cut: str, options: dict[str, Any], tmp_path: Path) -> None:
    alone = train(cut, 2, {name: value for name, value in options.items() if name != "engine"})
    found = values(run_ranks(run_in_order.train, ranks_of(cut), tmp_path, cut, options, False))
    for rank in found:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        for name, gradient in rank["gradients"].items():
            torch.testing.assert_close(gradient, alone["gradients"][name], rtol=1e-5, atol=1e-7)
    check_posts([rank["posted"] for rank in found])
    check_one_queue([rank["posted"] for rank in found])


@pytest.mark.parametrize("cut", ["shared", "mixed"])
def test_training_ends_even_if_every_message_blocks_both_ranks(cut: str, tmp_path: Path) -> None:
    alone = train(cut, 2, {})
    for rank in values(run_ranks(run_in_order.train, ranks_of(cut), tmp_path, cut, {}, True)):
        assert rank["losses"] == alone["losses"]


def test_posts_that_differ_are_found() -> None:
    one, other = "message 0>1 float [1] in [0, 1]", "message 1>0 float [1] in [0, 1]"
    with pytest.raises(AssertionError, match="pair"):
        check_posts([[one, other], [other, one]])
    with pytest.raises(AssertionError, match="wait forever"):
        check_one_queue([[one, other], [other, one]])


@given(PAIRS)
def test_rounds_hold_every_pair_once_and_no_rank_twice(pairs: set[Pair]) -> None:
    found = disjoint_rounds(pairs)
    assert sorted(chain(*found)) == sorted(pairs)
    for one in found:
        assert one
        assert len({*chain(*one)}) == 2 * len(one)
    most = max((sum(rank in pair for pair in pairs) for rank in range(10)), default=0)
    assert len(found) <= max(0, 2 * most - 1)


@given(PAIRS, st.randoms(use_true_random=False))
def test_rounds_do_not_depend_on_the_order_of_the_pairs(pairs: set[Pair], rng: random.Random) -> None:
    assert disjoint_rounds(rng.sample(sorted(pairs), len(pairs))) == disjoint_rounds(pairs)


def test_a_chain_needs_two_rounds() -> None:
    assert disjoint_rounds((rank, rank + 1) for rank in range(6)) == [
        [(0, 1), (2, 3), (4, 5)],
        [(1, 2), (3, 4), (5, 6)],
    ]


def test_pairs_are_those_that_the_schedule_sends_between() -> None:
    parts = [Part(micro_batch=4, degree=2), Part(micro_batch=4, degree=4), Part(micro_batch=4)]
    plan = make_plan(parts)
    placement = RankPlacement.of(plan, 7)
    expected = {(0, 2), (0, 3), (1, 4), (1, 5), (2, 6), (3, 6), (4, 6), (5, 6)}
    assert communicating_pairs(lower(plan, build_schedule(plan)), placement) == expected
    assert not communicating_pairs(lower(plan, build_schedule(plan)), RankPlacement.of(plan, 1))


def test_ranks_make_first_contact_in_one_order(tmp_path: Path) -> None:
    pairs = [*combinations(range(4), 2)]
    posted = values(run_ranks(run_in_order.first_messages, 4, tmp_path, pairs))
    check_posts(posted)
    check_one_queue(posted)
    assert all(sum(call.startswith("message") for call in calls) == 6 for calls in posted)
