"""Which weights of a run are its newest."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from graphpipe.cli.main import main
from graphpipe.errors import InvalidInput
from graphpipe.training.run_folder.newest_weights import newest_weights
from graphpipe.training.run_folder.run_folder import RunFolder

RUNS = Path(__file__).parents[2] / "fixtures" / "version_1"


@pytest.fixture
def ended(tmp_path: Path) -> RunFolder:
    """Return a run of six steps, of which the last checkpoint is that of step 6."""
    return RunFolder(shutil.copytree(RUNS / "finished", tmp_path / "run"))


def test_the_final_weights_are_newer_than_the_checkpoints_before_them(ended: RunFolder) -> None:
    assert newest_weights(ended) == (ended.weights, 6)
    result = json.loads(ended.metrics.read_text())
    ended.metrics.write_text(json.dumps(result | {"steps": 5}))  # It was resumed, and broke off after its checkpoint.
    assert newest_weights(ended) == (ended.checkpoints / "step-00000006", 6)


def test_a_run_that_has_not_ended_has_its_last_checkpoint() -> None:
    broken = RunFolder(RUNS / "broken")
    assert newest_weights(broken) == (broken.checkpoints / "step-00000003", 3)


def test_averages_that_were_not_kept_are_refused(ended: RunFolder) -> None:
    with pytest.raises(InvalidInput, match="has no averages of the weights"):
        newest_weights(ended, averaged=True)


def test_the_export_of_a_run_is_its_final_weights(ended: RunFolder, tmp_path: Path) -> None:
    """It was the last checkpoint. A run resumed without checkpoints had one from long before its end."""
    tensors = load_file(ended.weights)
    (ended.checkpoints / "step-00000006").rename(ended.checkpoints / "step-00000002")
    assert main(["export", str(ended), "-o", str(tmp_path / "model.safetensors")]) == 0
    exported = load_file(tmp_path / "model.safetensors")
    assert exported.keys() == tensors.keys()
    assert all(exported[name].equal(tensor) for name, tensor in tensors.items())
