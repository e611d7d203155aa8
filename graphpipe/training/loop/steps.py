"""The steps of a training on one rank, and what comes between them: evaluations, checkpoints and callbacks."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.shares.batch_share import GivenBatch
from graphpipe.trace import Trace
from graphpipe.training.elastic.survivor import BufferCopies
from graphpipe.training.loop.evaluations import Evaluations
from graphpipe.training.loop.segment_ends import flushes, segment_ends
from graphpipe.training.run_folder.leave_request import LeaveRequest
from graphpipe.training.run_folder.metrics_log import StepMetrics

TRACED = 5
"""Number of last steps that are traced, at least.

Before a traced step all ranks wait for each other. The others are not recorded, and do not have this barrier."""
SPREAD = 20
"""Steps that are traced besides, evenly over the training, so that costs are learned from all of it."""


@dataclass(slots=True)
class DoneSteps:
    """How the steps of a training have ended."""

    traces: list[Trace] = field(default_factory=list[Trace])
    """Of the last steps that were recorded, at most `TRACED + SPREAD`."""
    why_ended: str = ""
    """Why the training ended before its last step; empty if it did not, or leaves to go on with other ranks."""


def run_steps(
    evaluations: Evaluations,
    batches: Iterator[GivenBatch],
    checkpoints: Checkpoints,
    history: list[StepMetrics],
    leave: LeaveRequest | None,
    buffers: BufferCopies,
) -> DoneSteps:
    """Train to the last step, to the end of patience, or to a request to leave, and append to the history.

    Every rank calls this.

    Args:
        evaluations: of the training.
        batches: the mini-batches that follow.
        checkpoints: of the training.
        history: the steps done.
        leave: the request to leave at a checkpoint; None if there can be none.
        buffers: updated after each step.
    """
    done, pipeline, telemetry = DoneSteps(), evaluations.pipeline, evaluations.telemetry
    settings, callbacks, last = evaluations.config.train, evaluations.callbacks, telemetry.steps
    for end in segment_ends(settings, pipeline.steps, last, flushes=flushes(settings, pipeline.plan)):
        evaluated = evaluations.due(end)
        pipeline.recording = not settings.gradients_apart and (evaluated or is_recorded(pipeline.steps, end, last))
        for each in _segment(pipeline, batches, end):
            history.append(each)
            figures = telemetry.step(each, drained=each.step == end)
            callbacks.call(lambda callback, training, given=figures: callback.step(training, given))
        buffers.update()
        if pipeline.recording:
            done.traces = [*done.traces, pipeline.trace()][-TRACED - SPREAD :]
            telemetry.traced(done.traces[-1])
        if evaluated:
            evaluations.make()
            done.why_ended = evaluations.watch.why_stop
        saved = settings.checkpoint_every is not None and (end % settings.checkpoint_every == 0 or end == last)
        if evaluated or saved:
            done.why_ended = done.why_ended or callbacks.why_stop()
        if saved or (done.why_ended and settings.checkpoint_every is not None):
            start = time.perf_counter()
            checkpoints.save(evaluations.reader.position)
            telemetry.checkpoint(time.perf_counter() - start)
            callbacks.call(lambda callback, training: callback.checkpoint(training))
            if end < last and not done.why_ended and leave is not None and leave.asked():
                break
        if done.why_ended:
            telemetry.ended_early(done.why_ended)
            break
    return done


def is_recorded(begin: int, end: int, last: int) -> bool:
    """Return whether a segment is recorded that begins after a step and ends with another one.

    The first step is not, if others follow, because stages are checked in it. Nor is one of the first tenth, which
    warms up, unless it is among the last ones.
    """
    if end > last - TRACED:
        return begin > 0 or end == last
    every = max(1, last // SPREAD)
    return begin // every < end // every and 10 * begin > last


def _segment(pipeline: Pipeline, batches: Iterator[GivenBatch], end: int) -> list[StepMetrics]:
    """Train to a step, and return the steps; those of a segment took equally long."""
    first, rate = pipeline.steps + 1, _learning_rate(pipeline)
    start = time.perf_counter()
    losses = pipeline.segment(batches, count=end - pipeline.steps)
    seconds = (time.perf_counter() - start) / len(losses)
    norms = pipeline.gradient_norms
    return [
        StepMetrics(
            step=first + at,
            loss=loss,
            seconds=seconds,
            gradient_norm=norms[at] if len(norms) == len(losses) else None,
            learning_rate=None if at else rate,
        )
        for at, loss in enumerate(losses)
    ]


def _learning_rate(pipeline: Pipeline) -> float | None:
    # The largest of the groups on this rank. Within a segment only its first step's is known.
    groups = [group for each in pipeline.state.optimizers for group in each.optimizer.param_groups]
    return max((float(group["lr"]) for group in groups if "lr" in group), default=None)
