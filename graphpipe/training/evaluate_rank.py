"""One rank of `graphpipe evaluate`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_document import read_json
from graphpipe.files.text_file import write_text
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.plans import Plan
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.sources.weights import Weights
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.loop.evaluate_task import evaluate_task
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import load_task

JOB, RESULT = "job.json", "result.json"
"""The files of the folder that local ranks start from, beside the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """What to evaluate."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    config: TrainConfig
    run: str
    """The folder of the run."""
    weights: str
    """The file, folder or checkpoint of the weights."""
    averaged: bool
    """Whether the averages of a checkpoint are read in place of its weights."""

    def save(self, folder: Path) -> None:
        """Write it for the ranks."""
        write_text(folder / JOB, json.dumps(to_body(self)))


def evaluate_from_folder(directory: str) -> None:
    """Evaluate on this rank by the files of a folder. Local ranks start here."""
    folder = Path(directory)
    job = from_body(EvaluationJob, read_json(folder / JOB), JOB)
    found = evaluate_on_rank(job, Plan.load(RunFolder(folder).plan))
    if found["rank"] == 0:
        write_text(folder / RESULT, json.dumps(found))


def evaluate_on_rank(job: EvaluationJob, plan: Plan) -> dict[str, Any]:
    """Return loss and metrics of the held-out samples, the same on every rank, and this rank. Every rank calls this.

    Raises:
        InvalidInput: the task has no held-out samples, or the weights or the plan do not fit its model.
        PeerLost, PeerStalled: another rank is gone.
    """
    config = job.config
    task = load_task(config.task, config.folder, config.train.seed)
    if task.held_out is None:
        raise InvalidInput("the task has no held-out samples", where=config.task, remedy="Give Task(held_out=...).")
    source = Weights.read(job.weights, averaged=job.averaged)
    source.check(task.model)
    options = PipelineOptions(
        initial_weights=source,
        device="cpu" if plan.cluster.on_processors else None,
        captured=load_capture(RunFolder(Path(job.run)).capture, plan.graph),
        precision=config.train.precision,
        seed=config.train.seed,
        timeout_seconds=config.run.timeout_seconds,
    )
    with Pipeline(plan, task.model, task.loss_fn, options=options) as pipeline:
        found = evaluate_task(task, pipeline, config.train)
        return {"loss": found.loss, "metrics": dict(found.metrics), "rank": pipeline.world.rank}
