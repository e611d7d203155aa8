"""`graphpipe train --elastic` and `--fault`: a run that loses ranks equals an uninterrupted one with the same plans."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from cli_cases import Run, torchrun
from processes import all_processes_end
from safetensors.torch import load_file
from uninterrupted import train_uninterrupted

from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import newest_valid
from graphpipe.training.config.settings import TrainConfig

STAGES = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [
        {"ops": ["a"], "devices": [0], "micro_batch": 4},
        {"ops": ["b"], "devices": [1], "micro_batch": 4},
        {"ops": ["sum"], "devices": [2], "micro_batch": 4},
    ],
}
ALLOWANCE_SECONDS = 120
"""Time for ranks to end and to start: a few seconds, and several times that on a busy machine."""
LATE = """

def late_accuracy(outputs, targets):
    import pathlib, signal
    whole = len(outputs) > 16  # not the mini-batch that is evaluated before the first step
    if whole and os.environ.get("RANK") == "0" and not (dead := pathlib.Path("dead")).exists():
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return accuracy(outputs, targets)


def late_task():
    import dataclasses
    return dataclasses.replace(task(), accuracy=late_accuracy)
"""
"""Rank 0 is killed while it computes the accuracy, which the others wait for."""
PATIENT = """

def patient_task():
    import dataclasses, pathlib, time

    def patient(number, batch_size, seed):
        run = pathlib.Path("runs/tiny-1")
        for place, batch in enumerate(epoch(number, batch_size, seed), 1):
            saved = (run / "checkpoints" / "step-00000002", run / "plan-2.json")
            while place == 4 and not any(path.exists() for path in saved):
                time.sleep(0.05)
            while place == 4 and (run / "plan-2.json").exists() and not (run / "plan-3.json").exists():
                if (run / "take-back").exists():  # the request to leave
                    break
                time.sleep(0.05)
            yield batch

    return dataclasses.replace(task(), epoch=patient)
"""
"""Step 4 waits in the first launch until the checkpoint of step 2 is complete, and in the second until the lost device
has answered. Both take long on a busy machine."""
REPLICATED = {
    **STAGES,
    "stages": [
        {"ops": ["a*", "b"], "devices": [0, 1], "micro_batch": 4},
        {"ops": ["sum"], "devices": [2, 3], "micro_batch": 4},
    ],
}
STATISTICS = '"a": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))'
NOTE = "print(os.getpid(), file=open('read', 'a'))"
WORDS = ("cluster=local:3", "--plan", "plan.json", "train.checkpoint_every=2", "run.timeout_seconds=20")


@pytest.fixture
def planned(run: Run, config: Path) -> Path:
    """Return a configuration, and write a plan of three stages on three devices beside it."""
    Path("stages.json").write_text(json.dumps(STAGES))
    words = ("plan", "tiny.py:model", "--cluster", "local:3", "--batch", 16, "--stages", "stages.json")
    assert run(*words, "-o", "plan.json").code == 0
    return config


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.timeout(480)
def test_a_device_is_lost_and_used_again(run: Run, planned: Path, tmp_path: Path) -> None:
    Path("tiny.py").write_text(Path("tiny.py").read_text() + PATIENT)
    settings = ("task=tiny.py:patient_task", "train.steps=8", "run.timeout_seconds=120", "run.readmit_seconds=0.01")
    words = (*WORDS[:-1], *settings, "--fault", "kill@rank1:step4:phase=send", "--elastic", "--json")
    with all_processes_end():
        ran = run("train", planned, *words)
    assert ran.code == 0, ran.err
    lost, back = ran.json["recoveries"]
    assert ", stage 's1', step 4, send of micro-batch 0): was killed by SIGKILL" in lost["cause"]
    assert (lost["step"], lost["steps_lost"], lost["devices"]) == (2, 1, ["node0/cpu-0", "node0/cpu-2"])
    assert back["cause"] == "device node0/cpu-1 is back"
    assert (back["steps_lost"], len(back["devices"])) == (0, 3)
    for each in (lost, back):
        assert 0 < each["planning_seconds"] < each["seconds"] < ALLOWANCE_SECONDS
    assert "Lost: node0/cpu-1; 2 devices are left: planning again" in ran.err
    assert "on 2 devices: training continues after step 2, 1 step lost" in ran.err
    folder = Path(ran.json["directory"])
    assert json.loads((folder / "metrics.json").read_text())["recoveries"] == ran.json["recoveries"]
    logged = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, 9))

    first, second, third = (Plan.load(name) for name in ("plan.json", folder / "plan-2.json", folder / "plan-3.json"))
    assert first.stages == third.stages
    assert [device.name for device in second.cluster.devices] == ["node0/cpu-0", "node0/cpu-2"]
    plans = [(first, 2), (second, back["step"]), (third, 8)]
    expected = train_uninterrupted(TrainConfig.load(folder / "config.json"), tmp_path / "unbroken", plans)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.timeout(480)
def test_replicas_take_over_from_a_lost_rank_without_a_checkpoint(run: Run, config: Path, tmp_path: Path) -> None:
    """The data were read once more by every rank that went on."""
    text = Path("tiny.py").read_text().replace('"a": nn.Linear(4, 8)', STATISTICS)
    Path("tiny.py").write_text(text.replace("    for _ in range(4):", f"    {NOTE}\n    for _ in range(4):"))
    Path("stages.json").write_text(json.dumps(REPLICATED))
    words = ("plan", "tiny.py:model", "--cluster", "local:4", "--batch", 16, "--stages", "stages.json")
    assert run(*words, "-o", "plan.json").code == 0
    # Rank 0, which hosts the ranks' store and writes the run's files, is lost. Then two stages have one device each.
    faults = ("kill@rank0:step4:phase=send", "kill@rank2:step5:phase=backward", "kill@rank1:step10:phase=forward")
    settings = ("train.checkpoint_every=3", "train.steps=11", "run.readmit_seconds=1000", "lr_schedule.warmup_steps=6")
    words = ("cluster=local:4", "--plan", "plan.json", "run.timeout_seconds=60", *settings, "--elastic", "--json")
    with all_processes_end():
        Path("read").write_text("")
        ran = run("train", config, *words, *(word for fault in faults for word in ("--fault", fault)))
    assert ran.code == 0, ran.err
    # Held-out samples, the first mini-batch to check it, and three epochs.
    assert max(Counter(Path("read").read_text().split()).values()) == 5
    first, second, third = ran.json["recoveries"]
    assert [each["rerouted"] for each in (first, second, third)] == [True, True, False]
    assert "was killed by SIGKILL" in first["cause"]
    assert (first["step"], first["steps_lost"], len(first["devices"])) == (3, 0, 3)
    assert (second["step"], second["steps_lost"], second["devices"]) == (4, 0, ["node0/cpu-1", "node0/cpu-2"])
    # The checkpoint of step 6 is complete when the one of step 9 begins.
    assert third["step"] in (6, 9)
    assert (third["steps_lost"], len(third["devices"])) == (9 - third["step"], 1)
    print(*(f"{each['seconds']:.2f} s" for each in (first, second, third)))
    folder = Path(ran.json["directory"])
    logged = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, 12))
    plans = [Plan.load(name) for name in ("plan.json", *(folder / f"plan-{number}.json" for number in (2, 3, 4)))]
    assert all([stage.ops for stage in plan.stages] == [stage.ops for stage in plans[0].stages] for plan in plans[1:3])
    parts = [(plan, last) for plan, last in zip(plans, (3, 4, third["step"], 11), strict=True)]
    expected = train_uninterrupted(TrainConfig.load(folder / "config.json"), tmp_path / "unbroken", parts)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("fault", "limit", "cause"),
    [
        pytest.param("raise@rank1:step4:phase=backward", 20, "InjectedError", marks=pytest.mark.slow),
        ("stop@rank2:step4:phase=forward", 10, "did not answer the other ranks within the time limit"),
    ],
)
def test_a_run_continues_without_a_rank_that_raises_or_stops(
    fault: str, limit: int, cause: str, run: Run, planned: Path, tmp_path: Path
) -> None:
    words = (*WORDS[:-1], f"run.timeout_seconds={limit}", "run.readmit_seconds=1000", "train.steps=6", "--json")
    with all_processes_end():
        ran = run("train", planned, *words, "--fault", fault, "--elastic")
    assert ran.code == 0, ran.err
    (lost,) = ran.json["recoveries"]
    assert cause in lost["cause"]
    assert f"rank {fault[fault.index('rank') + 4]} (host " in lost["cause"]
    assert (lost["step"], lost["steps_lost"], len(lost["devices"])) == (2, 1, 2)
    assert 0 < lost["planning_seconds"] < lost["seconds"] < limit + ALLOWANCE_SECONDS
    folder = Path(ran.json["directory"])
    first, second = Plan.load("plan.json"), Plan.load(folder / "plan-2.json")
    config = TrainConfig.load(folder / "config.json")
    expected = train_uninterrupted(config, tmp_path / "unbroken", [(first, 2), (second, 6)])
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_a_run_without_a_flush_goes_on_from_its_last_drain(run: Run, planned: Path, tmp_path: Path) -> None:
    # The policy of a plan from a file was lost: the remaining devices trained with a flush.
    under_policy(Plan.load("plan.json"), "stash").save("plan.json")
    words = (*WORDS, "train.segment_steps=4", "run.readmit_seconds=1000", "train.steps=8", "--json")
    ran = run("train", planned, *words, "--fault", "kill@rank1:step6:phase=backward", "--elastic")
    assert ran.code == 0, ran.err
    (lost,) = ran.json["recoveries"]
    # The second drain's checkpoint begins when the first one's is complete, and may not be complete itself.
    assert lost["step"] in (2, 4)
    assert len(lost["devices"]) == 2
    folder = Path(ran.json["directory"])
    first, second = Plan.load("plan.json"), Plan.load(folder / "plan-2.json")
    assert (first.weights, second.weights) == ("stash", "stash")
    config = TrainConfig.load(folder / "config.json")
    expected = train_uninterrupted(config, tmp_path / "unbroken", [(first, lost["step"]), (second, 8)])
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("under_torchrun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_losing_a_rank_after_the_last_checkpoint_costs_no_step(
    under_torchrun: bool, run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a loss once ended the run with "the training is complete", and without results.
    Path("tiny.py").write_text(Path("tiny.py").read_text() + LATE)
    words = ("train", config, "task=tiny.py:late_task", "train.checkpoint_every=2", "train.steps=4", "--elastic")
    if under_torchrun:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        done = torchrun(2, *words, "--json", options=["--standalone", "--max-restarts", 1])
        assert done.returncode == 0, done.stderr
        told, result = done.stderr, json.loads(done.stdout)
    else:
        ran = run(*words, "run.readmit_seconds=0", "--json")
        assert ran.code == 0, ran.err
        told, result = ran.err, ran.json
    assert "no step was left to do" in told
    assert result["steps"] == 4
    assert result["accuracy"] is not None
    (recovery,) = result["recoveries"]
    assert (recovery["step"], recovery["steps_lost"]) == (4, 0)
    folder = Path(result["directory"])
    assert json.loads((folder / "metrics.json").read_text())["steps"] == 4
    assert not (folder / "recovering.json").exists()


@pytest.mark.usefixtures("forked_ranks")
def test_torchrun_restarts_the_ranks_in_place(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # While it writes a checkpoint, which begins once the one before is complete: two steps after that has begun, it may
    # not be yet on a loaded machine.
    words = ["--elastic", "train.checkpoint_every=2", "--fault", "kill@rank1:step4:phase=checkpoint", "--json"]
    done = torchrun(2, "train", config, *words, options=["--standalone", "--max-restarts", 1])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 6
    (recovery,) = result["recoveries"]
    assert (recovery["cause"], recovery["step"]) == ("the hosts joined again, with 2 ranks", 2)
    # Torchrun tells who died. Rank 0 notices, but may be stopped before it has said so.
    assert "(exitcode: -9) local_rank: 1 " in done.stderr
    folder = Path(result["directory"])
    assert {path.name for path in folder.glob("plan*.json")} == {"plan.json", "plan-2.json"}


@pytest.mark.usefixtures("forked_ranks")
def test_a_full_disk_ends_the_run_and_keeps_the_checkpoint_before(run: Run, planned: Path) -> None:
    with all_processes_end():
        ran = run("train", planned, *WORDS, "--fault", "disk-full@rank2:step4:phase=checkpoint")
    assert ran.code == 4
    assert ran.err.count("error: ") == 1
    assert "graphpipe: error: rank 2 (host " in ran.err
    assert "step-00000004.part: cannot be used: No space left on device (on rank 2, host " in ran.err
    assert newest_valid(Path("runs/tiny-1/checkpoints")).path.name == "step-00000002"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--elastic",),
            "an elastic run continues from checkpoints, but no checkpoints are made. Set train.checkpoint_every",
        ),
        (("--fault", "kil@rank0:step1"), "fault 'kil@rank0:step1': unknown kind 'kil'. Did you mean 'kill'?"),
        (("train.faults=['kill']",), "fault 'kill': has another form"),
        (("--fault", "kill@rank7:step1"), "fault 'kill@rank7:step1:phase=forward': there are 2 ranks, from 0"),
        (("run.readmit_seconds=-1",), "run.readmit_seconds: is -1.0, must be finite, not negative"),
        (("run.most_recoveries=-1",), "run.most_recoveries: is -1, must not be negative"),
        (("run.timeout_seconds=0",), "run.timeout_seconds: is 0.0, must be positive"),
    ],
)
def test_impossible_settings_are_refused_before_anything_runs(
    run: Run, config: Path, words: tuple[str, ...], message: str
) -> None:
    ran = run("train", config, *words)
    assert (ran.code, ran.err.count("error: ")) == (2, 1), ran.err
    assert message in ran.err
    assert not Path("runs").exists()


SLOW = """class Slow(nn.Linear):
    def forward(self, x):
        # A device that becomes slow after so many micro-batches.
        CALLS.append(None)
        if len(CALLS) > FAST and (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == ("1", "3"):
            time.sleep(0.12)
        return super().forward(x)


CALLS = []
"""


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("fast", "costs", "said", "cause"),
    [
        (48, "estimate", "has become slow: in each of the last 5 steps", "has become slow"),
        pytest.param(
            *(0, "profile", "as long as predicted, compared with the other devices"),
            "has been slow from the first step on",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_is_planned_around_a_slow_device(
    fast: int, costs: str, said: str, cause: str, run: Run, config: Path, tmp_path: Path
) -> None:
    text = f"FAST = {fast}\n" + Path("tiny.py").read_text().replace("import os", "import os\nimport time")
    text = text.replace("def model", SLOW + "\n\ndef model", 1).replace('"b": nn.Linear', '"b": Slow')
    Path("tiny.py").write_text(text)
    Path("stages.json").write_text(json.dumps(STAGES))
    words = ("plan", "tiny.py:model", "--cluster", "local:3", "--batch", 16, "--stages", "stages.json")
    assert run(*words, "-o", "plan.json").code == 0
    words = (
        "cluster=local:3",
        "plan.stages=stages.json",
        f"plan.costs={costs}",
        "train.checkpoint_every=5",
        "train.steps=80",
        "run.timeout_seconds=60",
        "--elastic",
        "--json",
    )
    with all_processes_end():
        ran = run("train", config, *words)
    assert ran.code == 0, ran.err
    assert said in ran.err
    assert "device node0/cpu-1 computes" in ran.err
    assert "so the ranks leave at the next checkpoint" in ran.err
    (around,) = ran.json["recoveries"]
    assert around["cause"] == f"device node0/cpu-1 {cause}"
    assert around["steps_lost"] == 0
    assert "node0/cpu-1" not in around["devices"]
    folder = Path(ran.json["directory"])
    plans = [(Plan.load("plan.json"), around["step"]), (Plan.load(folder / "plan-2.json"), 80)]
    expected = train_uninterrupted(TrainConfig.load(folder / "config.json"), tmp_path / "unbroken", plans)
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
