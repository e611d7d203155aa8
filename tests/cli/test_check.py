"""`graphpipe check`, and the same check before `graphpipe train`."""

import json
from pathlib import Path

import pytest
from cli_cases import TASK, Run

SUMMED = """
def summed():
    return task(lambda output, targets: ((output - targets) ** 2).sum())


def broken():
    def loss(output, targets):
        raise KeyError("labels")

    return task(loss)
"""


@pytest.fixture
def tiny(config: Path) -> Path:
    """The configuration of a small task, whose file also has a task with a sum as its loss."""
    (config.parent / "tiny.py").write_text(TASK + SUMMED)
    return config


@pytest.mark.timeout(120)
def test_a_zoo_model_is_equal(run: Run) -> None:
    ran = run("check", "two-tower-small", "--cluster", "local:2", "--batch", "8", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["equal"]
    assert ran.json["precision"] == "double"
    assert "equal: the plan trains as plain PyTorch does" in ran.err


@pytest.mark.timeout(120)
def test_a_plan_file_is_checked_with_squares_for_a_loss(run: Run, tiny: Path) -> None:
    model = "tiny.py:model"
    assert run("plan", model, "--cluster", "local:2", "--batch", "8", "-o", "plan.json").code == 0
    ran = run("check", model, "--plan", "plan.json")
    assert ran.code == 0, ran.err
    assert "note: the loss is the mean of the squared outputs" in ran.out
    refused = run("check", model, "--plan", "plan.json", "--batch", "4")
    assert (refused.code, "--batch: excludes --plan" in refused.err) == (2, True)


@pytest.mark.timeout(240)
def test_a_loss_that_is_a_sum_is_named_and_not_trained(run: Run, tiny: Path) -> None:
    words = (tiny, "task=tiny.py:summed", "plan.micro_batch=4", "plan.costs=estimate")
    for verb in ("check", "train"):
        refused = run(verb, *words, *(["train.steps=1"] if verb == "train" else []))
        assert refused.code == 2, refused.err
        assert "is not the mean of the losses of its parts" in refused.err
    assert not Path("runs").exists()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("forked_ranks")
def test_an_equal_plan_is_checked_once(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tiny.parent / "tiny.py"
    file.write_text(TASK.replace("import os\n", ""))
    own = lambda name: name is not None and Path(name).name == "tiny.py"  # noqa: E731
    monkeypatch.setattr("graphpipe.model.capture_cache.user_modules._is_users", own)
    words = ("train", tiny, "train.steps=1", "plan.costs=estimate")
    first, second = run(*words, "--json"), run(*words, "--json")
    assert "as plain PyTorch does (checked in" in first.err
    assert "as plain PyTorch does: found by an earlier check" in second.err
    assert json.loads((Path(second.json["directory"]) / "config.json").read_text())["train"]["check"]


@pytest.mark.timeout(120)
def test_a_loss_that_fails_is_named_by_check(run: Run, tiny: Path) -> None:
    ran = run("check", tiny, "task=tiny.py:broken", "plan.costs=estimate")
    assert ran.code == 2
    assert "a step in plain PyTorch raised KeyError: 'labels' (tiny.py, line" in ran.err


@pytest.mark.timeout(240)
def test_a_model_that_does_not_fit_is_checked_stage_by_stage(
    run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was compared, whatever the stages did."""
    monkeypatch.setattr("graphpipe.equivalence.check.available_host_bytes", lambda: 0)
    words = (tiny, "plan.micro_batch=4", "plan.costs=estimate")
    ran = run("check", *words)
    assert ran.code == 0, ran.err
    assert "the whole model was not checked: the model takes" in ran.out
    assert "' alone computes the same in micro-batches" in ran.out
    refused = run("check", *words, "task=tiny.py:summed", "--json")
    assert refused.code == 4
    assert "the loss is off by" in refused.json["stages"][-1]
    refused = run("train", *words, "task=tiny.py:summed", "train.steps=1")
    assert refused.code == 2
    assert "computes otherwise where its samples are divided into micro-batches: the loss is off by" in refused.err
