"""What each rank does in a round of trials: it builds a pipeline of each plan, and trains a few steps."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_document import read_json
from graphpipe.files.text_file import write_text
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.plans import Plan
from graphpipe.run.pipeline import Pipeline
from graphpipe.trace import Trace, typical_trace
from graphpipe.training.task.task import Batch
from graphpipe.training.tune.racing import FIRST_TURNS, next_turn
from graphpipe.training.tune.tuned_model import TunedModelName, load_tuned_model

WARM_UP = 1
"""Steps before the measured ones. The first one builds what later ones use again, such as the optimizer's state."""
LATE = 2**30
"""The steps that are measured count from here. A pipeline checks losses again in steps 1, 2, 4, 8 and so on."""
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
    """Plans that the ranks run, in turns or one after the other."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    subject: TunedModelName
    plans: tuple[PlanFiles, ...]
    steps: int
    """The most measured steps of each plan. Each is the mean of several if one is short."""
    seconds: float
    """After these, no other plan is begun, and no other turn."""
    together: bool
    """All plans are built, and take turns step by step. Each turn begins with another plan."""
    race: bool
    """Of plans that run together, those of `next_turn` go on after each turn. Otherwise all do."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """A plan that is built, and what was measured of it."""

    files: PlanFiles
    pipeline: Pipeline
    batch: Batch
    step: Trace
    """A typical one."""
    seconds: list[float] = field(default_factory=list[float])
    """Of each measured step."""


def run_round(path: str) -> None:
    """Run the plans of a round, on this rank. All ranks call this.

    Args:
        path: of the file of a `TrialRound`.
    """
    trials = from_body(TrialRound, read_json(Path(path)), path)
    ends_at = time.monotonic() + trials.seconds
    for some in [trials.plans] if trials.together else [(files,) for files in trials.plans]:
        with ExitStack() as stack:
            runners = [_built(trials.subject, files, stack) for files in some]
            over = take_turns(runners, trials, ends_at)
            if runners[0].pipeline.world.rank == 0:
                for runner in runners:
                    _write(runner)
        if over:
            return


def _built(word: TunedModelName, files: PlanFiles, stack: ExitStack) -> Runner:
    """Build the pipeline of a plan, train a step that is not measured, and record some that count as one."""
    plan, subject = Plan.load(files.plan), load_tuned_model(word)
    options = replace(
        subject.options,
        device="cpu" if plan.cluster.on_processors else None,
        captured=load_capture(Path(files.capture), plan.graph),
    )
    pipeline = Pipeline(plan, subject.module, subject.loss_fn, subject.optimizer, options=options)
    stack.enter_context(pipeline)
    _train(pipeline, subject.batch, WARM_UP)
    pipeline.resume(LATE, None)
    traces = recorded_steps(pipeline, subject.batch)
    seconds = [fmean(trace.step_seconds for trace in traces)] if plan.weights == "flush" else []
    return Runner(files=files, pipeline=pipeline, batch=subject.batch, step=typical_trace(traces), seconds=seconds)


def take_turns(runners: Sequence[Runner], trials: TrialRound, ends_at: float) -> bool:
    """Measure a step of each plan in turn, until each has as many as asked for, and return whether the time is over.

    Turns begin with another plan each, because what ran before can matter. A plan that does not flush measures all
    steps in one turn.
    """
    world, over = runners[0].pipeline.world, False
    flushes = all(runner.pipeline.plan.weights == "flush" for runner in runners)
    each_turn, done = (1, len(runners[0].seconds)) if flushes else (trials.steps, 0)
    racing = [*range(len(runners))]
    for turn in range((trials.steps - done) // each_turn):
        for number in racing[turn % len(racing) :] + racing[: turn % len(racing)]:
            runner = runners[number]
            runner.seconds += measured_steps(runner.pipeline, runner.batch, each_turn)
        # All ranks have the same seconds, and so the same candidates.
        if trials.race and trials.together:
            racing = sorted(next_turn({number: runner.seconds for number, runner in enumerate(runners)}))
        over = any(world.exchange(time.monotonic() > ends_at))
        if over or not racing:
            break
    return over


def recorded_steps(pipeline: Pipeline, batch: Batch) -> list[Trace]:
    """Return the traces of one step, or of as many as take `LEAST_SECONDS`. All ranks call this.

    They count as one measured step. Without a flush, a trace is of a segment of a few mini-batches.
    """
    traces: list[Trace] = []
    pipeline.recording = True
    while sum(trace.step_seconds for trace in traces) < LEAST_SECONDS:
        _train(pipeline, batch, 1 if pipeline.plan.weights == "flush" else FIRST_TURNS)
        traces.append(pipeline.trace())
    pipeline.recording = False
    return traces


def measured_steps(pipeline: Pipeline, batch: Batch, steps: int) -> list[float]:
    """Return the seconds of each measured step, on the slowest rank. All ranks call this.

    Args:
        pipeline: that does not record.
        batch: of each step.
        steps: to be measured. Each is the mean of as many as take `LEAST_SECONDS`. Without a flush, all together count
            as one.
    """
    seconds: list[float] = []
    together = 1 if pipeline.plan.weights == "flush" else steps
    for _ in range(steps // together):
        taken = _train(pipeline, batch, together)
        if more := max(0, math.ceil(together * LEAST_SECONDS / taken) - together):
            taken += _train(pipeline, batch, more)
        seconds.append(taken / (together + more))
    return seconds


def _train(pipeline: Pipeline, batch: Batch, steps: int) -> float:
    """Train some steps, and return how long they took on the slowest rank."""
    pipeline.world.barrier()
    start = time.perf_counter()
    pipeline.segment([batch] * steps)
    return max(pipeline.world.exchange(time.perf_counter() - start))


def _write(runner: Runner) -> None:
    runner.step.save(runner.files.trace)
    # Last, because a plan whose steps are written has run.
    write_text(Path(runner.files.steps), json.dumps(runner.seconds) + "\n")


def save_round(trials: TrialRound, path: Path) -> None:
    """Write a round for the ranks to read."""
    write_text(path, json.dumps(to_body(trials)) + "\n")
