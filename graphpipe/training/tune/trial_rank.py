"""What each rank does in a round of trials: it builds a pipeline of each plan, and trains a few steps."""

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_document import read_json
from graphpipe.files.text_file import write_text
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.plans import Plan
from graphpipe.run.pipeline import Pipeline
from graphpipe.trace import Trace, typical_trace
from graphpipe.training.task.task import Batch
from graphpipe.training.tune.tuned_model import TunedModelName, load_tuned_model

WARM_UP = 1
"""Steps before the measured ones. The first one builds what later ones use again, such as the optimizer's state."""
LEAST_SECONDS = 0.5
"""A measured step is the mean of as many as take so long. On shared processors, steps of 30 ms that follow each other
take 24 ms at one time and 41 ms at another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFiles:
    """The files of one plan that is tried."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    plan: str
    capture: str
    steps: str
    """Is written: the seconds of each measured step."""
    trace: str
    """Is written: a typical step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRound:
    """Plans that the ranks run one after the other."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    subject: TunedModelName
    plans: tuple[PlanFiles, ...]
    steps: int
    """Measured steps of each plan. Each is the mean of several if one is short."""
    seconds: float
    """After these, no other plan is begun."""


def run_round(path: str) -> None:
    """Run the plans of a round, on this rank. All ranks call this.

    Args:
        path: of the file of a `TrialRound`.
    """
    trials = from_body(TrialRound, read_json(Path(path)), path)
    start = time.monotonic()
    for files in trials.plans:
        plan = Plan.load(files.plan)
        subject = load_tuned_model(trials.subject)
        options = replace(
            subject.options,
            device="cpu" if plan.cluster.on_processors else None,
            captured=load_capture(Path(files.capture), plan.graph),
        )
        with Pipeline(plan, subject.module, subject.loss_fn, subject.optimizer, options=options) as pipeline:
            _train(pipeline, subject.batch, WARM_UP)
            pipeline.recording = True
            traces, seconds = measured_steps(pipeline, subject.batch, trials.steps)
            over = any(pipeline.world.exchange(time.monotonic() - start > trials.seconds))
            if pipeline.world.rank == 0:
                _write(files, traces, seconds)
        if over:
            return


def _train(pipeline: Pipeline, batch: Batch, steps: int) -> list[Trace]:
    if pipeline.plan.weights != "flush":  # A segment is one trace.
        pipeline.segment([batch] * steps)
        return [pipeline.trace()] if pipeline.recording else []
    traces: list[Trace] = []
    for _ in range(steps):
        pipeline.step(*batch)
        traces += [pipeline.trace()] if pipeline.recording else []
    return traces


def measured_steps(pipeline: Pipeline, batch: Batch, steps: int) -> tuple[list[Trace], list[float]]:
    """Return the traces of all steps that ran, and the seconds of each measured step. All ranks call this.

    Args:
        pipeline: that records.
        batch: of each step.
        steps: to be measured. Each is the mean of as many as take `LEAST_SECONDS`. Without a flush, all together count
            as one.
    """
    traces: list[Trace] = []
    seconds: list[float] = []
    together = 1 if pipeline.plan.weights == "flush" else steps
    for _ in range(steps // together):
        found = _train(pipeline, batch, together)
        # All ranks agree how many follow.
        longest = max(pipeline.world.exchange(sum(each.step_seconds for each in found)))
        if more := max(0, math.ceil(together * LEAST_SECONDS / longest) - together):
            found += _train(pipeline, batch, more)
        traces += found
        seconds.append(sum(each.step_seconds for each in found) / (together + more))
    return traces, seconds


def _write(files: PlanFiles, traces: list[Trace], seconds: list[float]) -> None:
    typical_trace(traces).save(files.trace)
    # Last, because a plan whose steps are written has run.
    write_text(Path(files.steps), json.dumps(seconds) + "\n")


def save_round(trials: TrialRound, path: Path) -> None:
    """Write a round for the ranks to read."""
    write_text(path, json.dumps(to_body(trials)) + "\n")
