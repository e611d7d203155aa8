"""The newest weights of a run: those after its last step, or a checkpoint if it was resumed and has not ended again."""

from pathlib import Path

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.run.checkpoint.folder import find_checkpoint, step_of
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.train_result import TrainResult


def newest_weights(run: RunFolder, *, averaged: bool = False) -> tuple[Path, int]:
    """Return where the newest weights of a run are, and its steps until then.

    They are the run's final weights, a file or (above 5 GB) a folder, unless a checkpoint has more steps.

    Args:
        run: its folder.
        averaged: take the averages of the weights (`evaluation.average_decay`).

    Raises:
        InvalidInput: it has neither.
        CheckpointCorrupt: it has not ended, and all its checkpoints are damaged.
    """
    if not run.metrics.exists():
        return _checkpoint(run)
    pair = (run.averaged_weights, run.averaged_weight_folder) if averaged else (run.weights, run.weight_folder)
    final = next((path for path in pair if path.exists()), None)
    if final is None:
        what = "has no averages of the weights" if averaged else "has no weights, although it has ended"
        remedy = "Take the weights themselves, or train with evaluation.average_decay." if averaged else ""
        raise InvalidInput(what, where=str(run), remedy=remedy)
    steps = from_body(TrainResult, read_json(run.metrics), str(run.metrics)).steps
    if any(step_of(each) > steps for each in run.checkpoints.glob("step-*")):
        return _checkpoint(run)
    return final, steps


def _checkpoint(run: RunFolder) -> tuple[Path, int]:
    checkpoint = find_checkpoint(run.path).path
    return checkpoint, step_of(checkpoint)
