"""The main job on one rank: train a task by a plan, evaluate it, and write down what happened."""

import json
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import cast

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import to_body, write_text
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.export_weights import CHECKPOINTS, save_weights
from graphpipe.run.comm.collective_calls import patiently
from graphpipe.run.comm.together import together
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.faults.injector import LOG as FAULTS
from graphpipe.run.faults.rank_status import WATCH
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.loss import kind_of
from graphpipe.trace import Trace
from graphpipe.training.config.optimizers import build_optimizer, scheduler_factory
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.readmission import Leave
from graphpipe.training.run_folder.metrics_log import read_log
from graphpipe.training.run_folder.recoveries import go_on, read_recoveries
from graphpipe.training.run_folder.train_result import Step, TrainResult, train_result
from graphpipe.training.task.data_reader import Position, Reader
from graphpipe.training.task.task import Task, check_first, load_task
from graphpipe.training.telemetry.banner import show_banner
from graphpipe.training.telemetry.readiness import readiness
from graphpipe.training.telemetry.telemetry import METRICS_LOG, Observer, observing

CONFIG, PLAN, COSTS = "config.json", "plan.json", "costs.json"
PREDICTED, MEASURED, CHROME = "trace-predicted.json", "trace-measured.json", "trace-chrome.json"
LOG, METRICS, WEIGHTS = METRICS_LOG, "metrics.json", "model.safetensors"
TRACED = 5
"""The last steps, of which the one with the median time is kept as the measured trace."""


def work(directory: str, resume: str = "", elastic: str = "") -> None:
    """Train on this rank what a run's folder describes: its config.json and plan.json.

    Args:
        directory: of the run.
        resume: anything but nothing goes on from the run's newest good checkpoint.
        elastic: anything but nothing leaves at a checkpoint if that is asked for.
    """
    config = TrainConfig.load(Path(directory) / CONFIG)
    plan = Plan.load(Path(directory) / PLAN)
    task = load_task(config.task, config.folder, config.train.seed)
    train(config, task, plan, Path(directory), resume=bool(resume), elastic=bool(elastic))


def train(
    config: TrainConfig,
    task: Task,
    plan: Plan,
    directory: Path,
    *,
    resume: bool = False,
    elastic: bool = False,
) -> TrainResult | None:
    """Train, evaluate and save; every rank calls this, and rank 0 writes the files.

    A run that was broken off after its last checkpoint has no step left to do: it is evaluated and saved at once.

    Writes metrics.jsonl (a line per step), metrics.json (the result), trace-measured.json (a typical step, if any was
    done here), model.safetensors (the state_dict of the whole model) and what the configured loggers write; and every
    rank its events/rank-R.jsonl (see `event`), its part of the checkpoints, and torch-profile/rank-R.json where it is
    asked for.

    Returns:
        The result; None if the ranks were asked to leave at a checkpoint (`elastic` only), and have left.

    Raises:
        InvalidInput: the plan does not fit the model or the world, the data not the plan, the checkpoint not the run.
        CheckpointCorrupt: every checkpoint to resume from is damaged.
        NonFiniteLoss: the loss or a gradient is NaN or infinite; no weight has been changed by it.
        PeerLost, PeerStalled: another rank is gone.
    """
    main = int(os.environ.get("RANK", "0")) == 0
    steps = count_steps(config, task)
    history = read_log(directory / LOG) if resume else []
    with (
        Pipeline(
            plan,
            task.module,
            task.loss_fn,
            optimizer=partial(build_optimizer, config.optimizer),
            lr_scheduler=scheduler_factory(config.lr_schedule, steps),
            engine=config.train.engine,
            shard_optimizer=config.train.shard_optimizer,
            precision=config.train.precision,
            clip_norm=config.train.clip_norm,
            seed=config.train.seed,
            record=True,
            timeout_seconds=config.run.timeout_seconds,
            faults=parse_faults(config.train.faults),
            fault_log=directory / FAULTS,
        ) as pipeline,
        Checkpoints(pipeline, directory / CHECKPOINTS, keep=config.train.keep) as checkpoints,
        telling_where(pipeline),
    ):
        position = Position()
        if resume:
            training = checkpoints.load()
            training.check_unfinished(steps, results=(directory / METRICS).exists(), where=str(directory))
            position = training.position
        if main:
            go_on(directory, pipeline.steps)
        history = [step for step in history if step.step <= pipeline.steps]
        if pipeline.steps == steps and not history:
            raise InvalidInput(
                f"tells of no step, and all {steps} are done",
                where=str(directory / LOG),
                remedy="The weights can be had: graphpipe export takes them from the last checkpoint.",
            )
        reader = Reader(task=task, batch_size=config.train.batch_size, seed=config.train.seed, position=position)
        held = pipeline.held()
        ready = readiness(held.world, plan, held.worker.placement)
        if main:
            show_banner(ready)
        leave = Leave(held.world, directory) if elastic else None
        with observing(config, held, directory, steps, history, pipeline.steps) as observer:
            traces = _steps(config, pipeline, reader, checkpoints, observer, history, leave)
            checkpoints.wait()
            if pipeline.steps < steps:
                return None
            pipeline.sync_model()
            # Before the user's `accuracy`, which may raise.
            together(held.world, lambda: save_weights(task.module, directory / WEIGHTS) if main else None, patient=True)
            result = train_result(plan, history, *_evaluate(task, pipeline), read_recoveries(directory))
            observer.end(result)
        if main:
            _save(directory, traces, result)
    return result


@contextmanager
def telling_where(pipeline: Pipeline) -> Generator[None]:
    """Print where this rank was when something goes wrong inside: our launcher reads its notes, torchrun does not."""
    try:
        yield
    except Exception:
        held = pipeline.held()
        if WATCH not in os.environ and held.world.size > 1:
            print(f"rank {held.world.rank} failed: {held.worker.watch.where}", file=sys.stderr, flush=True)
        raise


def count_steps(config: TrainConfig, task: Task) -> int:
    """Return the optimizer steps of a training.

    Raises:
        InvalidInput: an epoch has no mini-batch, or its first is not of this task's inputs and size.
    """
    size = config.train.batch_size
    found = cast("object", task.epoch(0, size, config.train.seed))
    if not isinstance(found, Iterable):
        raise InvalidInput(
            f"returned {type(found).__name__}, must return or yield mini-batches (inputs, targets)",
            where="epoch",
        )
    batches = iter(cast("Iterable[object]", found))
    first = next(batches, None)
    if first is None:
        raise InvalidInput(
            f"an epoch has no mini-batch of {size} samples",
            where="train.batch_size",
            remedy="Choose a smaller batch, or a longer epoch.",
        )
    check_first(first, task, size)
    steps, epochs = config.train.steps, config.train.epochs
    if epochs is None:
        assert steps is not None
        return steps
    whole = epochs * (length_hint(found) or 1 + sum(1 for _ in batches))
    return whole if steps is None else min(steps, whole)


def _steps(
    config: TrainConfig,
    pipeline: Pipeline,
    reader: Reader,
    checkpoints: Checkpoints,
    observer: Observer,
    history: list[Step],
    leave: Leave | None,
) -> list[Trace]:
    """Train up to the last step, or until asked to leave, extending the history; return the last steps' traces."""
    traces: list[Trace] = []
    every = config.train.checkpoint_every
    for number, (inputs, targets) in zip(range(pipeline.steps + 1, observer.steps + 1), reader, strict=False):
        start = time.perf_counter()
        loss = pipeline.step(inputs, targets)
        history.append(Step(step=number, loss=loss, seconds=time.perf_counter() - start))
        observer.step(history[-1])
        if number > observer.steps - TRACED:
            traces.append(pipeline.trace())
        if every is not None and (number % every == 0 or number == observer.steps):
            start = time.perf_counter()
            checkpoints.save(reader.position)
            observer.checkpoint(time.perf_counter() - start)
            if number < observer.steps and leave is not None and leave.asked():
                break
    return traces


def _evaluate(task: Task, pipeline: Pipeline) -> tuple[float | None, float | None]:
    """Return the loss and the accuracy on the held-out samples: the accuracy where the task can tell, else the loss."""
    if task.held_out is None:
        return None, None
    inputs, targets = task.held_out
    if task.accuracy is None:
        return pipeline.evaluate(inputs, targets, gather=False)[0], None
    accuracy, outputs = task.accuracy, pipeline.evaluate(inputs)[1]
    answers: list[object] = []
    # A rank that is lost in the user's function is noticed before rank 0 writes results.
    patiently(pipeline.held().world, lambda: answers.append(accuracy(outputs, targets)))
    found = answers[0]
    try:
        return None, float(found)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"returned {kind_of(found)}, must return one number", where="accuracy", remedy="Return its mean()."
        ) from None


def _save(directory: Path, traces: Sequence[Trace], result: TrainResult) -> None:
    if traces:
        by_time = sorted(traces, key=lambda trace: trace.step_seconds)
        by_time[len(by_time) // 2].save(directory / MEASURED)
    write_text(directory / METRICS, json.dumps(to_body(result), indent=1) + "\n")
