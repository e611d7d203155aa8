"""A training that is interrupted and resumed gives the same results as an uninterrupted one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_checkpoints import pipeline_of, resume, tied_pipeline, train_and_save, train_tied, train_uninterrupted
from run_models import fan_batch
from run_ranks import run_ranks, values

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.folder import newest_valid

SAVED = [2, 4]


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the results after the last checkpoint bit for bit."""
    assert found["step"] == SAVED[-1]
    assert found["losses"] == expected["losses"][SAVED[-1] :]
    assert found["state"].keys() == expected["state"].keys()
    for name, tensor in expected["state"].items():
        assert torch.equal(found["state"][name], tensor), name


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"][SAVED[-1] :], rel=1e-6)
    for name, tensor in expected["state"].items():
        torch.testing.assert_close(found["state"][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("cut", ["four", "replicas", "mixed"])
def test_one_process_resumes_bit_for_bit(cut: str, tmp_path: Path) -> None:
    options = {"dropout": 0.3, "norm": True}
    train_and_save(cut, str(tmp_path), SAVED, options)
    assert_equal(resume(cut, str(tmp_path), options), train_uninterrupted(cut, **options))


@pytest.mark.parametrize(("cut", "ranks"), [("shared", 2), ("replicas", 4)])
def test_several_processes_resume_bit_for_bit(cut: str, ranks: int, tmp_path: Path) -> None:
    options = {"dropout": 0.3, "norm": True}
    folder = str(tmp_path / "checkpoints")
    values(run_ranks(train_and_save, ranks, tmp_path / "first", cut, folder, SAVED, options))
    expected = train_uninterrupted(cut, **options)  # one process and several ranks agree bit for bit
    for rank in values(run_ranks(resume, ranks, tmp_path / "second", cut, folder, options)):
        assert_equal(rank, expected)


@pytest.mark.parametrize("cut", ["four", "mixed", "whole"])
def test_another_plan_resumes_the_checkpoint_of_two_processes(cut: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    values(run_ranks(train_and_save, 2, tmp_path / "ranks", "shared", folder, SAVED, {}))
    assert_close(resume(cut, folder, {}), train_uninterrupted("shared"))


def test_several_processes_resume_the_checkpoint_of_one(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    train_and_save("four", folder, SAVED, {})
    expected = train_uninterrupted("four")
    for rank in values(run_ranks(resume, 4, tmp_path / "ranks", "replicas", folder, {})):
        assert_close(rank, expected)


def test_a_captured_model_resumes_with_tied_frozen_and_unused_parameters(tmp_path: Path) -> None:
    trained = train_tied(str(tmp_path))
    pipeline, model = tied_pipeline(seed=7)
    assert not torch.equal(model.unused.weight, trained["unused.weight"])
    Checkpoints(pipeline, tmp_path).load()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert model.left.decode.weight is model.left.encode.weight


def test_weights_that_an_update_made_nan_are_not_saved(tmp_path: Path) -> None:
    """The next step failed, and so did every run that resumed from the newest checkpoint."""
    pipeline, model = pipeline_of("four")
    with pipeline:
        checkpoints = Checkpoints(pipeline, tmp_path)
        pipeline.step(*fan_batch(seed=0))
        checkpoints.save()
        pipeline.step(*fan_batch(seed=1))
        next(each for name, each in model.named_parameters() if name.startswith("left")).data[0] = torch.nan
        with pytest.raises(
            InvalidInput, match=r"^step 2: the optimizer made NaN of parameter 'left\..* before are kept"
        ):
            checkpoints.save()
    assert newest_valid(tmp_path).path.name == "step-00000001"
