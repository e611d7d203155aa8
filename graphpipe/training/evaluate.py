"""Evaluates the task of a run once more: its final weights, or those of a checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import find_checkpoint, step_of
from graphpipe.torchrun import under_torchrun
from graphpipe.training.config.from_toml import resolve_config
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.evaluate_rank import RESULT, EvaluationJob, evaluate_on_rank
from graphpipe.training.run_folder.newest_weights import newest_weights
from graphpipe.training.run_folder.run_folder import RunFolder

RANK_ENTRY = "graphpipe.training.evaluate_rank:evaluate_from_folder"
"""What every rank runs."""
_REMEDY = "Give the folder of a run, or a checkpoint in it."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """What an evaluation has found, under the names that `--json` prints."""

    run: str
    weights: str
    """The file, folder or checkpoint of the weights."""
    averaged: bool
    """Whether they are averages of weights."""
    step: int
    """Steps done."""
    loss: float | None
    """Mean loss over the held-out samples; None if they have no targets."""
    metrics: dict[str, float]
    """What the task's `accuracy` and `metrics` returned, by name."""
    rank: int = 0
    """The rank of this process. It is only other than 0 under torchrun."""


def evaluate(
    source: str | Path,
    *,
    overrides: Sequence[str] = (),
    averaged: bool | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> RunEvaluation:
    """Evaluate the held-out samples of a run's task, on as many ranks as its plan uses.

    In a process that torchrun has started, this process is one of the ranks, and every rank must call this.

    Args:
        source: the folder of a run: its final weights, or its newest checkpoint if it has not ended. Or a checkpoint,
            or the folder `best` of a run.
        overrides: changed settings, such as `train.batch_size=8`, for which the run's plan need not be made.
        averaged: evaluate the averages of the weights. None: if the run keeps some.
        tell: called with a line before the ranks start.

    Raises:
        InvalidInput: there are no such weights, they are in no run's folder, or the task has no held-out samples.
        CheckpointCorrupt: the checkpoint is damaged.
        RankFailed: a rank failed.
    """
    place = Path(source)
    run = _run_of(place)
    config = resolve_config(TrainConfig.load(run.config), overrides)
    if averaged is None:
        averaged = config.evaluation.average_decay is not None
    weights, step = _weights(place, run, averaged=averaged)
    job = EvaluationJob(config=config, run=str(run), weights=str(weights), averaged=averaged)
    plan = Plan.load(run.plan)
    if under_torchrun():
        found = evaluate_on_rank(job, plan)
    else:
        with TemporaryDirectory(prefix="graphpipe-evaluate") as name:
            folder = Path(name)
            job.save(folder)
            plan.save(RunFolder(folder).plan)
            ranks = len(plan.used_devices)
            tell(f"evaluating {weights} on {ranks} local {'process' if ranks == 1 else 'processes'}")
            launch(
                RANK_ENTRY,
                ranks,
                arguments=[name],
                port=config.run.port,
                timeout_seconds=config.run.timeout_seconds,
            )
            found = read_json(folder / RESULT)
    return from_body(
        RunEvaluation,
        {"run": str(run), "weights": str(weights), "averaged": averaged, "step": step} | found,
        str(run),
    )


def _run_of(place: Path) -> RunFolder:
    for folder in (place, *place.absolute().parents):
        if RunFolder(folder).config.is_file() and RunFolder(folder).plan.is_file():
            return RunFolder(folder)
    if not place.exists():
        raise InvalidInput("no such folder", where=str(place), remedy=_REMEDY)
    raise InvalidInput("is not in the folder of a run", where=str(place), remedy=_REMEDY)


def _weights(place: Path, run: RunFolder, *, averaged: bool) -> tuple[Path, int]:
    # Where the weights are, and the steps done.
    if place.absolute() == run.path.absolute():
        return newest_weights(run, averaged=averaged)
    checkpoint = find_checkpoint(place).path
    return checkpoint, step_of(checkpoint)
