"""When a rank fails, the others end within seconds and name the lost rank, and the launcher reports the cause."""

import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from processes import all_processes_end, running_processes, still_running
from run_checkpoints import pipeline_of, train_uninterrupted, train_with_faults
from run_ranks import Outcome, run_ranks, values
from run_scenarios import die, fail_and_linger, fail_in_loss, not_a_number, stall
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe.errors import InvalidInput
from graphpipe.launch.first_failure import RankFailed, first_failure
from graphpipe.launch.launcher import launch
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.faults.check_faults import check_faults, phases_by_rank
from graphpipe.run.faults.fault import KINDS, PHASES, parse_fault, parse_faults

RANK_FUNCTIONS = Path(__file__).parents[2] / "support" / "ranks"

CUT, RANKS, OUTPUT_RANK = "four", 4, 3


def test_peers_of_a_rank_that_raises_end_with_an_error(tmp_path: Path) -> None:
    outcomes = run_ranks(fail_in_loss, RANKS, tmp_path, CUT)
    assert outcomes[OUTPUT_RANK].error == "KeyError: 'labels'"
    for outcome in outcomes[:OUTPUT_RANK]:
        assert outcome.error.startswith("PeerLost: rank ")


def test_a_rank_that_raises_but_keeps_running_does_not_block_the_others(tmp_path: Path) -> None:
    outcomes = run_ranks(fail_and_linger, RANKS, tmp_path, CUT, str(tmp_path))
    assert outcomes[OUTPUT_RANK].error == "KeyError: 'labels'"
    for outcome in outcomes[:OUTPUT_RANK]:
        assert outcome.error.startswith("PeerLost: rank ")
        assert outcome.seconds < 10


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_peers_of_a_killed_rank_end_with_an_error(killed: int, tmp_path: Path) -> None:
    outcomes = run_ranks(die, RANKS, tmp_path, CUT, killed)
    assert outcomes[killed].exitcode == -9
    errors = [outcome.error for rank, outcome in enumerate(outcomes) if rank != killed]
    assert all(error.startswith("PeerLost: ") for error in errors), errors
    assert any(f"rank {killed} died" in error for error in errors), errors
    assert max(outcome.seconds for outcome in outcomes) < 10


def test_peers_of_a_stalled_rank_end_with_an_error(tmp_path: Path) -> None:
    outcomes = run_ranks(stall, RANKS, tmp_path, CUT, 1, str(tmp_path))
    errors = [outcome.error for rank, outcome in enumerate(outcomes) if rank != 1]
    assert any(error.startswith("PeerStalled: rank 1 did not answer") for error in errors), errors
    assert all(error.startswith(("PeerStalled: ", "PeerLost: ")) for error in errors), errors
    assert max(outcome.seconds for outcome in outcomes) < 10


def test_nan_stops_every_rank_before_the_update_and_names_the_first_stage(tmp_path: Path) -> None:
    for rank in values(run_ranks(not_a_number, RANKS, tmp_path, CUT)):
        assert rank["message"].startswith("step 1, stage 'stem', micro-batch 1: the loss is nan")
        assert rank["changed"] == []
        assert rank["loss"] == rank["loss"]


STEP, GUILTY = 2, 1
SAID = {
    "kill": "was killed by SIGKILL",
    "raise": "InjectedError: injected by 'raise@rank1:step2",
    "stop": "did not answer the other ranks within the time limit",
    "oom": "OutOfMemory: ",
    "nan": "NonFiniteLoss: step 2, stage '",
    "shape": "InvalidInput: ",
    "disk-full": ".part: cannot be used: No space left on device (on rank 1",
}
MATRIX = [
    (kind, phase)
    for kind, phases in KINDS.items()
    for phase in phases
    if kind != "slow" and (kind != "oom" or phase in ("forward", "reduce", "checkpoint"))
]
FEW = {"raise": ("optimizer", "checkpoint"), "stop": ("receive", "reduce"), "oom": ("forward",), "nan": ("forward",)}
"""Phases that `make test` tries, of kinds other than `kill`, with which it tries all."""


def blame(outcomes: list[Outcome], folder: Path) -> RankFailed:
    """Return the first failure that a launcher would report."""
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=1, exitcode=outcome.exitcode or 1, error_file="")
        for rank, outcome in enumerate(outcomes)
        if outcome.error or outcome.exitcode
    }
    for rank, failure in failures.items():
        if outcomes[rank].error:
            failure.error_file_data = {"message": {"message": outcomes[rank].error}}
    return first_failure(failures, folder)


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        pytest.param(kind, phase, marks=[] if phase in FEW.get(kind, PHASES) else pytest.mark.slow)
        for kind, phase in MATRIX
    ],
)
def test_after_any_fault_all_ranks_end_the_failed_rank_is_named_and_the_checkpoint_is_kept(
    kind: str, phase: str, tmp_path: Path
) -> None:
    fault = f"{kind}@rank{GUILTY}:step{STEP}:phase={phase}"
    limit = 2.0 if kind == "stop" else 20.0
    outcomes = run_ranks(train_with_faults, 2, tmp_path, "pair", str(tmp_path), [fault], limit)
    assert max(outcome.seconds for outcome in outcomes) < 10
    cause = blame(outcomes, tmp_path)
    # All ranks find a NaN in the same collective call, and the message names the stage.
    assert cause.rank == GUILTY or kind == "nan"
    assert SAID[kind] in str(cause)
    assert f"(host {os.uname().nodename}, " in str(cause)
    assert "step 2" in str(cause)
    if kind in ("kill", "raise", "stop", "oom") and phase != "checkpoint":
        assert f", {phase}" in cause.where
        assert phase == "optimizer" or "stage '" in cause.where
    if kind == "nan":
        assert all(error.startswith("NonFiniteLoss") for error in (outcome.error for outcome in outcomes))
        assert ("micro-batch 0" in str(cause)) == (phase == "forward")
        assert "stage 'left'" in str(cause) if phase == "forward" else "gradient is not finite" in str(cause)

    pipeline, _ = pipeline_of("pair")
    training = Checkpoints(pipeline, tmp_path / "checkpoints").load()
    assert training.step == STEP - 1
    assert fault in (tmp_path / "faults.jsonl").read_text()


def test_a_slow_rank_only_delays_the_training(tmp_path: Path) -> None:
    faults = [f"slow@rank{GUILTY}:step{STEP}:phase={phase}:seconds=0.1" for phase in PHASES]
    outcomes = run_ranks(train_with_faults, 2, tmp_path, "pair", str(tmp_path), faults, 20.0)
    assert values(outcomes) == [train_uninterrupted("pair")["losses"][:3]] * 2
    assert min(outcome.seconds for outcome in outcomes) > 0.7
    assert len((tmp_path / "faults.jsonl").read_text().splitlines()) == len(PHASES)


@pytest.mark.slow
def test_a_launcher_names_a_stopped_rank_and_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{RANK_FUNCTIONS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)  # Programs of other tests may run in the folder of the tests.
    with all_processes_end(), pytest.raises(RankFailed) as caught:
        launch("run_jobs:train_with_faults", 2, arguments=[str(tmp_path), "stop@rank1:step2:phase=backward"])
    # The time limit of the ranks, the launcher's grace period, and as much again for a busy machine.
    assert time.monotonic() - caught.value.seen < 2 * (3 + 5)
    assert str(caught.value).startswith(f"rank 1 (host {os.uname().nodename}, stage '")
    assert "step 2, backward of micro-batch" in caught.value.where
    assert "and did not react to SIGTERM, so it was killed" in str(caught.value)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("fault", ["oom@rank1:step2", "shape@rank0:step2", "nan@rank1:step2", "slow@rank0:step2"])
def test_a_launcher_ends_all_processes_after_any_fault(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RANK_FUNCTIONS)
    slow = fault.startswith("slow")
    with all_processes_end(), nullcontext() if slow else pytest.raises(RankFailed):
        launch("run_jobs:train_with_faults", 2, arguments=[str(tmp_path), fault + ":seconds=0.2" * slow])
    ranks = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(ranks) == 2
    assert still_running(running_processes(ranks), 2) == []


def test_a_recorded_fault_does_not_strike_again_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "faults.jsonl").write_text('{"fault": "raise@rank0:step1:phase=forward", "time": 0}\n')
    fault = ["raise@rank0:step1", "raise@rank0:step1:phase=optimizer"]
    with pytest.raises(RuntimeError, match="phase=optimizer"):
        train_with_faults("pair", str(tmp_path), fault, 3.0)


def test_a_fault_whose_phase_is_not_reached_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="rank 0 did not reach phase 'send' in step 1"):
        train_with_faults("pair", str(tmp_path), ["kill@rank0:step1:phase=send"], 3.0)


def test_a_fault_is_parsed_from_its_text_form() -> None:
    for kind, phases in KINDS.items():
        assert parse_fault(f"{kind}@rank2:step3").phase == phases[0]
        for phase in phases:
            fault = parse_fault(f"{kind}@rank2:step3:phase={phase}")
            assert (fault.kind, fault.rank, fault.step, fault.phase) == (kind, 2, 3, phase)
            assert parse_fault(str(fault)) == fault
    assert parse_fault("slow@rank0:step1:seconds=0.5").seconds == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill", r"fault 'kill': has another form. Write KIND@rankR:stepS"),
        ("kil@rank1:step1", "unknown kind 'kil'. Did you mean 'kill'?"),
        ("kill@rank1:step0", "step is 0, the first is 1"),
        ("kill@rank1:step1:phase=bakward", "unknown phase 'bakward'. Did you mean 'backward'?"),
        ("kill@rank1:step1:stage=2", "unknown option 'stage'"),
        ("nan@rank1:step1:phase=send", "'nan' cannot strike in phase 'send'. It can in: forward, backward"),
        ("kill@rank1:step1:seconds=3", "'kill' takes no seconds"),
        ("slow@rank1:step1:seconds=soon", "seconds is 'soon', must be positive"),
    ],
)
def test_a_malformed_fault_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_fault(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill@rank2:step1", "there are 2 ranks, from 0"),
        ("kill@rank1:step9", "there are 8 steps, from 1"),
        ("kill@rank0:step4:phase=checkpoint", "there is no checkpoint after step 4: one is made every 3 steps"),
        ("slow@rank0:step4:seconds=30", "lasts 30 s, ranks wait 20 s for a silent rank. Use 'stop'"),
        ("kill@rank1:step1:phase=reduce", "rank 1 never reaches phase 'reduce' in this plan. Ranks that do: none"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused_before_the_training(text: str, message: str) -> None:
    pipeline, _ = pipeline_of("shared")
    phases = phases_by_rank(pipeline.plan, 2)
    check = {"steps": 8, "every": 3, "timeout_seconds": 20.0}
    check_faults(parse_faults(["kill@rank1:step8:phase=checkpoint"]), phases, **check)
    with pytest.raises(InvalidInput) as caught:
        check_faults(parse_faults([text]), phases, **check)
    assert message in str(caught.value)
