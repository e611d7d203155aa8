"""A rank that fails ends the others within seconds, and each says whom it lost."""

from pathlib import Path

import pytest
from run_ranks import run_ranks, values
from run_scenarios import die, fail_and_linger, fail_in_loss, not_a_number, stall

CUT, RANKS, OUTPUT_RANK = "four", 4, 3


def test_a_rank_that_raises(tmp_path: Path) -> None:
    outcomes = run_ranks(fail_in_loss, RANKS, tmp_path, CUT)
    assert outcomes[OUTPUT_RANK].error == "KeyError: 'labels'"
    for outcome in outcomes[:OUTPUT_RANK]:
        assert outcome.error.startswith("PeerLost: rank ")


def test_a_rank_that_raises_and_lives_on_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    outcomes = run_ranks(fail_and_linger, RANKS, tmp_path, CUT, str(tmp_path))
    assert outcomes[OUTPUT_RANK].error == "KeyError: 'labels'"
    for outcome in outcomes[:OUTPUT_RANK]:
        assert outcome.error.startswith("PeerLost: rank ")
        assert outcome.seconds < 10


@pytest.mark.parametrize("killed", [0, 3])
def test_a_rank_that_is_killed(killed: int, tmp_path: Path) -> None:
    outcomes = run_ranks(die, RANKS, tmp_path, CUT, killed)
    assert outcomes[killed].exitcode == -9
    errors = [outcome.error for rank, outcome in enumerate(outcomes) if rank != killed]
    assert all(error.startswith("PeerLost: ") for error in errors), errors
    assert any(f"rank {killed} died" in error for error in errors), errors
    assert max(outcome.seconds for outcome in outcomes) < 10


def test_a_rank_that_stalls(tmp_path: Path) -> None:
    outcomes = run_ranks(stall, RANKS, tmp_path, CUT, 1, str(tmp_path))
    errors = [outcome.error for rank, outcome in enumerate(outcomes) if rank != 1]
    assert any(error.startswith("PeerStalled: rank 1 did not answer") for error in errors), errors
    assert all(error.startswith(("PeerStalled: ", "PeerLost: ")) for error in errors), errors
    assert max(outcome.seconds for outcome in outcomes) < 10


def test_nan_stops_every_rank_before_the_update_and_names_the_first_stage(tmp_path: Path) -> None:
    for rank in values(run_ranks(not_a_number, RANKS, tmp_path, CUT)):
        assert rank["said"].startswith("step 1, stage 'stem', micro-batch 1: the loss is nan")
        assert rank["changed"] == []
        assert rank["loss"] == rank["loss"]
