"""The main job on one rank: train a task by a plan, evaluate it, and write down what happened."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import TextIO

import torch

from graphpipe.documents import to_body, write_text
from graphpipe.errors import InvalidInput
from graphpipe.plan import Plan
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.progress import TrainProgress
from graphpipe.run.recipe import build_optimizer, scheduler_factory
from graphpipe.run.task import Batch, Task, load_task
from graphpipe.run.train_config import TrainConfig
from graphpipe.run.train_result import Step, TrainResult, train_result
from graphpipe.trace import Trace

CONFIG, PLAN, COSTS = "config.json", "plan.json", "costs.json"
PREDICTED, MEASURED, CHROME = "trace-predicted.json", "trace-measured.json", "trace-chrome.json"
LOG, METRICS, WEIGHTS = "metrics.jsonl", "metrics.json", "weights.pt"
TRACED = 5
"""The last steps, of which the one with the median time is kept as the measured trace."""


def work(directory: str) -> None:
    """Train on this rank what a run's folder describes: its config.json and plan.json."""
    config = TrainConfig.load(Path(directory) / CONFIG)
    plan = Plan.load(Path(directory) / PLAN)
    train(config, load_task(config.task, config.folder, config.train.seed), plan, Path(directory))


def train(config: TrainConfig, task: Task, plan: Plan, directory: Path) -> TrainResult:
    """Train, evaluate and save; every rank calls this, and rank 0 writes the files.

    Writes metrics.jsonl (a line per step), metrics.json (the result), trace-measured.json (a typical step)
    and weights.pt (the state_dict of the whole model).

    Raises:
        InvalidInput: the plan does not fit the model or the world, or the data does not fit the plan.
        NonFiniteLoss: the loss is NaN or infinite; no weight has been changed by it.
        PeerLost, PeerStalled: another rank is gone.
    """
    main = int(os.environ.get("RANK", "0")) == 0
    steps = count_steps(config, task)
    with (
        Pipeline(
            plan,
            task.module,
            task.loss_fn,
            optimizer=partial(build_optimizer, config.optimizer),
            lr_scheduler=scheduler_factory(config.lr_schedule, steps),
            clip_norm=config.train.clip_norm,
            seed=config.train.seed,
            record=True,
            timeout_seconds=config.run.timeout_seconds,
        ) as pipeline,
        TrainProgress(steps, shown=main) as progress,
        (directory / LOG).open("w", encoding="utf-8") if main else nullcontext() as log,
    ):
        history, traces = _steps(config, task, pipeline, progress, log)
        result = train_result(plan, history, *_evaluate(task, pipeline))
        pipeline.sync_model()
        if main:
            _save(directory, task, traces, result)
    return result


def count_steps(config: TrainConfig, task: Task) -> int:
    """Return the optimizer steps of a training.

    Raises:
        InvalidInput: an epoch has no mini-batch.
    """
    batches = iter(task.epoch(0, config.train.batch_size, config.train.seed))
    if next(batches, None) is None:
        raise InvalidInput(
            f"an epoch has no mini-batch of {config.train.batch_size} samples",
            where="train.batch_size",
            remedy="Choose a smaller batch.",
        )
    steps, epochs = config.train.steps, config.train.epochs
    if epochs is None:
        assert steps is not None
        return steps
    whole = epochs * (1 + sum(1 for _ in batches))
    return whole if steps is None else min(steps, whole)


def _steps(
    config: TrainConfig, task: Task, pipeline: Pipeline, progress: TrainProgress, log: TextIO | None
) -> tuple[list[Step], list[Trace]]:
    history: list[Step] = []
    traces: list[Trace] = []
    for number, (inputs, targets) in zip(range(1, progress.steps + 1), _batches(config, task), strict=False):
        start = time.perf_counter()
        loss = pipeline.step(inputs, targets)
        history.append(Step(step=number, loss=loss, seconds=time.perf_counter() - start))
        progress.advance(loss, config.train.batch_size / history[-1].seconds)
        if log is not None:
            print(json.dumps(to_body(history[-1])), file=log, flush=True)
        if number > progress.steps - TRACED:
            traces.append(pipeline.trace())
    return history, traces


def _batches(config: TrainConfig, task: Task) -> Iterator[Batch]:
    for epoch in count():
        yield from task.epoch(epoch, config.train.batch_size, config.train.seed)


def _evaluate(task: Task, pipeline: Pipeline) -> tuple[float | None, float | None]:
    """Return the loss and the accuracy on the held-out samples: the accuracy where the task can tell, else the loss."""
    if task.held_out is None:
        return None, None
    inputs, targets = task.held_out
    if task.accuracy is None:
        return pipeline.evaluate(inputs, targets, gather=False)[0], None
    return None, float(task.accuracy(pipeline.evaluate(inputs)[1], targets))


def _save(directory: Path, task: Task, traces: list[Trace], result: TrainResult) -> None:
    by_time = sorted(traces, key=lambda trace: trace.step_seconds)
    by_time[len(by_time) // 2].save(directory / MEASURED)
    weights = directory / WEIGHTS
    torch.save(task.module.state_dict(), f"{weights}.part")
    os.replace(f"{weights}.part", weights)
    write_text(directory / METRICS, json.dumps(to_body(result), indent=1) + "\n")
