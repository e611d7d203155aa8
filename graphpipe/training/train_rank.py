"""The training loop of one rank: train a task by a plan, evaluate the model, and save the results."""

import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from graphpipe.errors import InvalidInput, PeerLost, PeerStalled
from graphpipe.files.json_body import to_body
from graphpipe.files.text_file import write_text
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.split.module_stage import check_evaluates
from graphpipe.planners.gradients_apart import place_gradients
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.run.export.save_model import save_model
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.faults.rank_status import STATUS_FOLDER
from graphpipe.run.initial_weights.init_weights import WeightsFollow
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.step.balance import Balance
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.weights.weight_update import SchedulerFactory
from graphpipe.simulator.round_seconds import round_seconds
from graphpipe.trace import Trace, typical_trace
from graphpipe.training.config.optimizers import apply_settings
from graphpipe.training.config.parameter_groups import ParameterGroups
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.configured_options import configured_options
from graphpipe.training.elastic.survivor import KeptState, Reader, RepeatableBatches, Survivor
from graphpipe.training.loop.callbacks import Callbacks
from graphpipe.training.loop.evaluate_task import try_metrics
from graphpipe.training.loop.evaluation_watch import figures_of
from graphpipe.training.loop.evaluations import Evaluations
from graphpipe.training.loop.segment_ends import flushes, segment_ends
from graphpipe.training.loop.steps import run_steps
from graphpipe.training.run_folder.leave_request import LeaveRequest
from graphpipe.training.run_folder.metrics_log import StepMetrics, read_metrics_log
from graphpipe.training.run_folder.recoveries import note_recovery, read_recoveries
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.train_result import TrainResult
from graphpipe.training.task.count_steps import count_steps
from graphpipe.training.task.data_reader import DataReader
from graphpipe.training.task.dataset_reader import DatasetReader
from graphpipe.training.task.factories import check_followed, optimizer_factory, schedule_factory
from graphpipe.training.task.initial_weights import initial_weights
from graphpipe.training.task.sample_work import arrange_of, balance_of
from graphpipe.training.task.task import Task, load_task
from graphpipe.training.telemetry.banner import compilation_line, readiness, show_banner
from graphpipe.training.telemetry.telemetry import open_telemetry


def train_from_folder(directory: str, resume: str = "", elastic: str = "") -> None:
    """Train on this rank by the config.json and plan.json of a run's folder. Local ranks start here.

    Args:
        directory: of the run.
        resume: if non-empty, resume from the run's newest valid checkpoint.
        elastic: if non-empty, leave at a checkpoint when the supervisor requests it.
    """
    folder = RunFolder(Path(directory))
    config = TrainConfig.load(folder.config)
    plan = Plan.load(folder.plan)
    task = load_task(config.task, config.folder, config.train.seed)
    train_rank(config, task, plan, folder, resume=bool(resume), elastic=bool(elastic))


def train_rank(
    config: TrainConfig,
    task: Task,
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool = False,
    elastic: bool = False,
) -> TrainResult | None:
    """Train, evaluate and save. Every rank calls this.

    A run that was interrupted after its last step is evaluated and saved at once.

    Rank 0 writes metrics.jsonl (a line per step), metrics.json (the result), trace-measured.json (a typical step, if
    any step was done here), model.safetensors (the state_dict of the whole model; for more than 5 GB, the folder
    weights with several files) and the files of the configured loggers. Every rank writes its events/rank-R.jsonl (see
    `event`), its part of each checkpoint and, if configured, torch-profile/rank-R.json.

    Args:
        config: of the training.
        task: its task, with the initial weights.
        plan: with one device per rank.
        folder: of the run.
        resume: resume from the run's newest valid checkpoint.
        elastic: leave at a checkpoint when the supervisor requests it.

    Returns:
        The result. None if the ranks have left at a checkpoint before the last step.

    Raises:
        InvalidInput: the plan does not fit the model or the number of ranks, the data do not fit the plan, or the
            checkpoint does not fit the run.
        CheckpointCorrupt: every checkpoint to resume from is damaged.
        NonFiniteLoss: the loss or a gradient is NaN or infinite. It has not changed any weight.
        PeerLost, PeerStalled: another rank is gone.
    """
    survivor, steps = Survivor.of(config, plan) if elastic else Survivor(None), count_steps(config, task)
    while True:
        try:
            return _train(config, task, plan, folder, survivor, steps, resume=resume, elastic=elastic)
        except (PeerLost, PeerStalled) as error:
            if not survivor.goes_on(error):
                raise
        plan = Plan.load(folder.plan)  # of the ranks that are left


def _train(
    config: TrainConfig,
    task: Task,
    plan: Plan,
    folder: RunFolder,
    survivor: Survivor,
    steps: int,
    *,
    resume: bool,
    elastic: bool,
) -> TrainResult | None:
    """Train, evaluate and save with one generation of ranks."""
    main = int(os.environ.get("RANK", "0")) == 0
    kept = survivor.kept
    groups = ParameterGroups.of(config.optimizer, task.model)  # while all of the model is here
    reader = kept.reader if kept else _reader(config, task, plan)
    history = kept.history if kept else read_metrics_log(folder.metrics_log) if resume else []
    with (
        _pipeline(config, task, plan, folder, reader, steps, kept, follow=resume) as pipeline,
        Checkpoints(
            pipeline, folder.checkpoints, keep=config.train.keep, background=config.train.checkpoint_async
        ) as checkpoints,
        reporting_status(pipeline),
    ):
        check_followed(config, task, [each.scheduler for each in pipeline.state.optimizers])
        if task.held_out is not None:
            check_evaluates(pipeline.state.programs)  # rather than after all steps
            try_metrics(task, pipeline, config.train)
        if kept:
            kept.resume(pipeline)
        elif resume:
            training = checkpoints.load()
            training.check_unfinished(steps, results=folder.metrics.exists(), where=str(folder))
            if task.optimizer is None:
                apply_settings(pipeline.state.optimizers, _options_by_parameter(groups, pipeline))
            reader.position = training.position
        if main:
            note_recovery(folder, pipeline.steps)
        history = _until(pipeline.steps, history, steps, folder)
        batches = _batches(pipeline, reader, kept)
        ready = readiness(pipeline.world, plan)
        if main:
            show_banner(ready)
        leave = LeaveRequest(pipeline.world, folder) if elastic else None
        ends = [*segment_ends(config.train, pipeline.steps, steps, flushes=flushes(config.train, plan))]
        callbacks = Callbacks.of(config, task, pipeline, folder, steps)
        with open_telemetry(
            config, pipeline, folder, steps, history, pipeline.steps, len(ends), callbacks=bool(callbacks.callbacks)
        ) as telemetry:
            evaluations = Evaluations.of(config, task, pipeline, reader, telemetry, folder, callbacks)
            callbacks.call(lambda callback, training: callback.start(training))
            with survivor.training(pipeline, checkpoints, reader, batches, history, steps) as buffers:
                done = run_steps(evaluations, batches, checkpoints, history, leave, buffers)
            checkpoints.wait()
            if main and pipeline.compilations:
                print(compilation_line(pipeline.compilations), file=sys.stderr, flush=True)
            if pipeline.steps < steps and not done.why_ended:
                return None
            _save_weights(config, pipeline, folder)  # before the user's `accuracy`, which may raise
            found = evaluations.make()
            callbacks.call(lambda callback, training: callback.end(training, figures_of(found.loss, found.metrics)))
            result = TrainResult.of(
                _predicted(plan, config),
                history,
                loss=found.loss,
                accuracy=found.accuracy,
                metrics=found.metrics,
                recoveries=read_recoveries(folder),
                why_ended=done.why_ended,
                best_step=evaluations.watch.best_step,
                best=evaluations.watch.best,
            )
            telemetry.end()
        if main:
            _save(folder, done.traces, result)
    return result


def _pipeline(
    config: TrainConfig,
    task: Task,
    plan: Plan,
    folder: RunFolder,
    reader: Reader,
    steps: int,
    kept: KeptState | None,
    *,
    follow: bool,
) -> Pipeline:
    # With the state that is kept from ranks before, if there is one. Its weights are in the task's module.
    apart, optimizer = config.train.gradients_apart, optimizer_factory(config, task)
    schedule = kept.schedule if kept else schedule_factory(config, task, steps)
    source = None if kept else WeightsFollow() if follow else initial_weights(config, task)
    return Pipeline(
        place_gradients(plan, apart) if apart else plan,
        task.model,
        task.loss_fn,
        kept.optimizer(optimizer) if kept else optimizer,
        options=_options(config, schedule, plan, folder, reader, source, balance_of(task, config.train.balance)),
    )


def _until(step: int, history: Sequence[StepMetrics], steps: int, folder: RunFolder) -> list[StepMetrics]:
    found = [each for each in history if each.step <= step]
    if step == steps and not found:
        raise InvalidInput(
            f"has no step, although all {steps} steps are done",
            where=str(folder.metrics_log),
            remedy="`graphpipe export` writes the weights of the last checkpoint.",
        )
    return found


def _save_weights(config: TrainConfig, pipeline: Pipeline, folder: RunFolder) -> None:
    if config.evaluation.average_decay is not None:
        with pipeline.averaged():
            save_model(pipeline, folder.averaged_weights, folder.averaged_weight_folder)
    pipeline.modes.set(training=False)
    save_model(pipeline, folder.weights, folder.weight_folder)


def _predicted(plan: Plan, config: TrainConfig) -> Plan:
    # With the seconds of a step that are predicted for what is trained.
    apart = config.train.gradients_apart
    if not apart or plan.prediction is None:
        return plan
    seconds = round_seconds(place_gradients(plan, apart))
    return replace(plan, prediction=replace(plan.prediction, step_seconds=seconds, steady_seconds=seconds))


def _options_by_parameter(groups: ParameterGroups, pipeline: Pipeline) -> Callable[[Tensor], Mapping[str, Any]]:
    names = pipeline.state.parameter_names
    return lambda parameter: groups.options_of(names[id(parameter)])


def _reader(config: TrainConfig, task: Task, plan: Plan) -> Reader:
    size, seed = config.train.batch_size, config.train.seed
    if (source := task.source()) is None:
        return DataReader(task=task, batch_size=size, seed=seed, position=DataPosition())
    return DatasetReader(
        source=source,
        sampler=task.sampler,
        batch_size=size,
        seed=seed,
        workers=config.train.workers,
        prefetch=config.train.prefetch,
        arrange=arrange_of(task, config.train.balance, plan),
    )


def _batches(pipeline: Pipeline, reader: Reader, kept: KeptState | None) -> RepeatableBatches:
    if kept is None:
        return RepeatableBatches.after(pipeline.steps, reader.batches(pipeline.needs()))
    if isinstance(reader, DatasetReader):  # The ranks that are left need other rows.
        if kept.batches.taken > pipeline.steps:
            reader.step_back()
        return RepeatableBatches.after(pipeline.steps, reader.batches(pipeline.needs()))
    return kept.batches


def _options(
    config: TrainConfig,
    schedule: SchedulerFactory,
    plan: Plan,
    folder: RunFolder,
    reader: Reader,
    source: WeightSource | None,
    balance: Balance | None,
) -> PipelineOptions:
    return replace(
        configured_options(config),
        initial_weights=source,
        balance=balance,
        lr_scheduler=schedule,
        device="cpu" if plan.cluster.on_processors else None,
        captured=load_capture(folder.capture, plan.graph),
        faults=parse_faults(config.train.faults),
        fault_log=folder.faults,
        position=lambda: str(reader.position),
        rollback=False,  # a segment that fails ends the run, which continues from its checkpoint
    )


@contextmanager
def reporting_status(pipeline: Pipeline) -> Generator[None]:
    """Note the error if the block raises, before a peer can notice that this rank is gone.

    GraphPipe's launcher reads it with this rank's status from a file. Torchrun cannot, so the status is printed there.
    """
    try:
        yield
    except Exception as error:
        world = pipeline.world
        pipeline.monitor.status.write_error(error)
        if STATUS_FOLDER not in os.environ and world.size > 1:
            print(f"rank {world.rank} failed: {pipeline.monitor.last_status}", file=sys.stderr, flush=True)
        raise


def _save(folder: RunFolder, traces: Sequence[Trace], result: TrainResult) -> None:
    if traces:
        typical_trace(traces).save(folder.measured_trace)
    write_text(folder.metrics, json.dumps(to_body(result), indent=1) + "\n")
