"""`graphpipe train --resume` and `graphpipe export`: an interrupted run, resumed, and its weights."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_cases import CONFIG, TASK, Run
from forked_programs import forked_programs
from safetensors.torch import load_file

from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.manifest import MANIFEST, PLAN, FileEntry, Manifest

WORDS = ("train", "tiny.toml", "train.checkpoint_every=3", "lr_schedule.name=cosine")
BROKEN = """

class Broken(Exception):
    pass


def breaking(number, batch_size, seed):
    for count, batch in enumerate(epoch(number, batch_size, seed)):
        if number == 1 and count == 1:
            import pathlib, time
            end = time.monotonic() + 200
            while time.monotonic() < end and not [*pathlib.Path("runs").glob("*/checkpoints/step-00000003")]:
                time.sleep(0.05)  # it is written beside the steps
            raise Broken("the power is gone")
        yield batch


def breaking_task():
    import dataclasses
    return dataclasses.replace(task(), epoch=breaking)
"""
DROPOUT = TASK.replace('"a": nn.Linear(4, 8)', '"a": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2))')


def losses(run: str | Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(run) / "model.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run that was interrupted after step 5, with a checkpoint of step 3."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "tiny.py").write_text(DROPOUT + BROKEN)
    (folder / "tiny.toml").write_text(CONFIG)
    words = [forked_programs() / "graphpipe", *WORDS, "task=tiny.py:breaking_task"]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 4
    assert "Broken: the power is gone" in ran.stderr
    return folder


@pytest.fixture
def broken(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the interrupted run into the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in Path("runs/tiny-1/checkpoints").glob("step-*")] == ["step-00000003"]
    assert [step for step, _ in losses("runs/tiny-1")] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("forked_ranks")
def test_a_resumed_run_equals_an_uninterrupted_run(run: Run, broken: None) -> None:
    resumed = run(*WORDS, "--resume", "runs/tiny-1", "--json")
    assert resumed.code == 0, resumed.err
    assert "resuming after step 3 from runs/tiny-1/checkpoints/step-00000003" in resumed.err
    assert "step 4/6" in resumed.err
    assert resumed.json["steps"] == 6
    assert resumed.json["directory"] == "runs/tiny-1"
    assert run(*WORDS).code == 0  # uninterrupted, in runs/tiny-2
    assert losses("runs/tiny-1") == losses("runs/tiny-2")
    assert [step for step, _ in losses("runs/tiny-1")] == [1, 2, 3, 4, 5, 6]
    for name, tensor in weights("runs/tiny-2").items():
        assert torch.equal(weights("runs/tiny-1")[name], tensor), name

    again = run(*WORDS, "--resume", "runs/tiny-1")
    assert again.code == 2
    assert "the training is complete: 6 of 6 steps are done. Choose more train.steps" in again.err
    exported = run("export", "runs/tiny-1", "-o", "exported.safetensors", "--json")
    assert exported.json == {
        "checkpoint": "runs/tiny-1/model.safetensors",
        "output": "exported.safetensors",
    }
    assert {n: t.tolist() for n, t in load_file("exported.safetensors").items()} == {
        n: t.tolist() for n, t in weights("runs/tiny-1").items()
    }


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_interrupted_after_its_last_step_is_evaluated_and_saved(run: Run, broken: None) -> None:
    # All three steps were done, but the run ended before its results were written. It could not be resumed once.
    words = [*WORDS, "train.steps=3", "--resume", "runs/tiny-1"]
    resumed = run(*words, "--json")
    assert resumed.code == 0, resumed.err
    assert "no step was left to do, so no measured step is compared with the prediction" in resumed.err
    assert resumed.json["steps"] == 3
    assert json.loads(Path("runs/tiny-1/metrics.json").read_text())["accuracy"] == resumed.json["accuracy"]
    assert not Path("runs/tiny-1/trace-measured.json").exists()
    assert [step for step, _ in losses("runs/tiny-1")] == [1, 2, 3]
    assert run("export", "runs/tiny-1", "-o", "exported.safetensors").code == 0
    exported = load_file("exported.safetensors")
    assert all(torch.equal(exported[name], each) for name, each in weights("runs/tiny-1").items())
    again = run(*words)
    assert (again.code, again.err.count("error: ")) == (2, 1), again.err
    assert "the training is complete: 3 of 3 steps are done" in again.err


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_without_its_metrics_log_has_no_result(run: Run, broken: None) -> None:
    Path("runs/tiny-1/metrics.jsonl").unlink()
    ran = run(*WORDS, "train.steps=3", "--resume", "runs/tiny-1")
    assert (ran.code, ran.err.count("error: ")) == (4, 1), ran.err
    assert "metrics.jsonl: has no step, although all 3 steps are done" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_torchrun_resumes_a_run_of_two_processes_on_one(broken: None) -> None:
    # The plan was given as a file, so its policy is not in the configuration: it was lost once.
    checkpoint = Path("runs/tiny-1/checkpoints/step-00000003")
    under_policy(Plan.load(checkpoint / PLAN), "stash").save(checkpoint / PLAN)
    manifest = Manifest.load(checkpoint / MANIFEST)
    manifest.files[PLAN] = FileEntry.of(checkpoint / PLAN)
    manifest.save(checkpoint / MANIFEST)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "graphpipe"]
    words = [*command, *WORDS, "cluster=local:1", "--resume", "runs/tiny-1", "--json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the run was planned for another cluster than local:1: planning again" in done.stderr
    assert json.loads(done.stdout)["steps"] == 6
    plan = Plan.load("runs/tiny-1/plan.json")
    assert (len(plan.used_devices), plan.weights) == (1, "stash")
    assert [step for step, _ in losses("runs/tiny-1")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_without_a_flush_is_resumed_from_its_last_drain_before_nan(run: Run, broken: None) -> None:
    words = (*WORDS, "plan.weights=moving-average", "train.segment_steps=2", "train.loggers=[]")
    failed = run(*words, "--fault", "nan@rank0:step5:phase=backward")  # in the segment of steps 4 and 5
    assert failed.code == 4
    assert "NonFiniteLoss: step 5" in failed.err
    assert "Go on from a checkpoint" in failed.err
    assert [path.name for path in Path("runs/tiny-2/checkpoints").glob("step-*")] == ["step-00000003"]
    assert run(*words, "--resume", "runs/tiny-2").code == 0
    assert run(*words).code == 0  # uninterrupted, in runs/tiny-3
    assert losses("runs/tiny-2") == losses("runs/tiny-3")
    for name, tensor in weights("runs/tiny-3").items():
        assert torch.equal(weights("runs/tiny-2")[name], tensor), name


@pytest.mark.usefixtures("forked_ranks")
def test_other_settings_are_applied_and_said(run: Run, broken: None) -> None:
    """The learning rate of the checkpoint ran on, and config.json had the new one."""
    changed = ("optimizer.lr=0.02", "optimizer.weight_decay=0.5", "lr_schedule.name=constant")
    resumed = run(*WORDS, *changed, "--resume", "runs/tiny-1", "--json")
    assert resumed.code == 0, resumed.err
    assert "other settings from step 4 on: task tiny.py:breaking_task -> tiny.py:task, " in resumed.err
    for words in ("optimizer.lr 0.05 -> 0.02", "optimizer.weight_decay 0.0 -> 0.5", "lr_schedule.name cosine -> con"):
        assert words in resumed.err
    config = json.loads(Path("runs/tiny-1/config.json").read_text())
    assert (config["optimizer"]["lr"], config["lr_schedule"]["name"]) == (0.02, "constant")
    state = json.loads(Path("runs/tiny-1/checkpoints/step-00000006/optimizer-00.json").read_text())
    assert [(each["lr"], each["weight_decay"]) for each in state["groups"]] == [(0.02, 0.5)] * len(state["groups"])
    assert run(*WORDS).code == 0  # with the settings from before, in runs/tiny-2
    assert losses("runs/tiny-1")[:4] == losses("runs/tiny-2")[:4]  # the fourth loss is of the weights before
    assert losses("runs/tiny-1")[4:] != losses("runs/tiny-2")[4:]


@pytest.mark.usefixtures("forked_ranks")
def test_another_plan_is_made_and_another_optimizer_refused(run: Run, broken: None) -> None:
    refused = run(*WORDS, "optimizer.name=sgd", "--resume", "runs/tiny-1")
    assert (refused.code, refused.err.count("error: ")) == (2, 1), refused.err
    assert "optimizer.name: the run was trained with adamw, and its checkpoint has no state of sgd" in refused.err
    assert json.loads(Path("runs/tiny-1/config.json").read_text())["optimizer"]["name"] == "adamw"
    resumed = run(*WORDS, "plan.micro_batch=4", "--resume", "runs/tiny-1")
    assert resumed.code == 0, resumed.err
    assert "plan.micro_batch changed: planning again" in resumed.out
    assert {stage.micro_batch for stage in Plan.load("runs/tiny-1/plan.json").stages} == {4}


def test_runs_that_cannot_be_resumed(run: Run, broken: None) -> None:
    before = sorted(str(path) for path in Path("runs").rglob("*"))
    for words, message in (
        (["--resume", "runs/none"], "runs/none/checkpoints: holds no checkpoint"),
        (["--resume", "runs/tiny-1", "train.seed=1"], "was trained with seed 0, this run has seed 1"),
        (["--resume", "runs/tiny-1", "train.batch_size=8"], "was trained with mini-batches of 16, this run has"),
        (["--resume", "runs/tiny-1", "train.steps=2"], "the training is complete: 3 of 2 steps are done"),
        (
            ["--resume", "runs/tiny-1", "train.initial_weights=init"],
            "train.initial_weights: the run has begun with other",
        ),
    ):
        ran = run(*WORDS, *words)
        assert (ran.code, ran.err.count("error: ")) == (2, 1), ran.err
        assert message in ran.err
    Path("tiny.py").write_text(DROPOUT.replace("nn.Linear(8, 1)", "nn.Linear(8, 1, bias=False)"))
    ran = run(*WORDS, "--resume", "runs/tiny-1")
    assert ran.code == 2
    assert "made for another model" in ran.err
    file = Path("runs/tiny-1/checkpoints/step-00000003/model-00.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    ran = run(*WORDS, "--resume", "runs/tiny-1")
    assert ran.code == 4
    assert "model-00.safetensors: holds" in ran.err
    assert sorted(str(path) for path in Path("runs").rglob("*")) == before


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_gradients_apart_go_on_from_a_checkpoint(run: Run, config: None) -> None:
    """Their optimizers are elsewhere than the weights that a checkpoint saves, and their plan has other stages."""
    words = ["train", "tiny.toml", "cluster=summit:1x2", "plan.planner=pipedream", "train.checkpoint_every=3"]
    words += ["train.gradients_apart=stash", "optimizer.name=adamw"]
    for settings in (["train.steps=3"], ["train.steps=6"]):
        done = run(*words, *settings)
        assert done.code == 0, done.err
    assert "gradients were computed apart from the stages of the plan" in done.out
    resumed = run(*words, "train.steps=6", "--resume", "runs/tiny-1")
    assert resumed.code == 0, resumed.err
    assert losses("runs/tiny-1") == losses("runs/tiny-2")
    for name, tensor in weights("runs/tiny-2").items():
        assert torch.equal(weights("runs/tiny-1")[name], tensor), name
    assert len(Plan.load(Path("runs/tiny-1/plan.json")).used_devices) == 2


def test_an_elastic_run_with_gradients_apart_is_refused(run: Run, config: None) -> None:
    refused = run("train", "tiny.toml", "train.gradients_apart=flush", "--elastic", "train.checkpoint_every=3")
    assert refused.code == 2
    assert "train.gradients_apart: is 'flush', and a run that loses a device cannot place its gradients" in refused.err
