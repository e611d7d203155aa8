"""A rehearsal: the real runtime, with real processes and messages in the real order. Only compute is emulated."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median_low
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from graphpipe.devices.cpu import CPU
from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import join
from graphpipe.run.meeting.rendezvous_store import loopback_interface
from graphpipe.run.rehearse.emulated_replica import SecondsByTask, emulated_specs, emulated_worker, sleep
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.step.build_worker import open_groups
from graphpipe.run.worker.recorder import assemble
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.step_run import run_step
from graphpipe.schedule import Schedule
from graphpipe.schedule.lower import lower
from graphpipe.trace import Trace

GRACE_SECONDS = 2.0
"""After a rank has failed, the others have this long to report their errors."""

MARGIN_SECONDS = 0.5
"""Every rank must be ready for the next step within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalJob:
    """The input of every rank of a rehearsal."""

    plan: Plan
    schedule: Schedule
    seconds: tuple[SecondsByTask, ...]
    """The seconds of tasks, one mapping for each step. Steps take them in turn."""
    steps: int
    timeout_seconds: float
    folder: str


def rehearse(
    plan: Plan, schedule: Schedule, predicted: Sequence[Trace], *, steps: int = 5, timeout_seconds: float = 120.0
) -> Trace:
    """Run the plan with one process per device in use, where each task sleeps for its predicted seconds.

    Args:
        plan: from `scaled_plan`. Its bytes are really moved.
        schedule: of the plan, or of a segment, which then counts as one step.
        predicted: with the seconds of tasks and optimizer steps. The steps take these traces in turn: one is enough if
            all steps are alike, but if samples have loads, each step has its own.
        steps: how many to time, after one that is not timed.
        timeout_seconds: of the whole rehearsal.

    Returns:
        The trace of the step of median length.

    Raises:
        InvalidInput: `steps` is less than 1.
        GraphPipeError: a rank failed, or the time is over. All processes are stopped.
    """
    if steps < 1:
        raise InvalidInput(f"is {steps}, must be at least 1", where="steps")
    seconds = tuple(
        {
            (span.device, span.stage, span.kind, span.micro_batch): span.end_seconds - span.start_seconds
            for span in trace.spans
            if span.kind in ("F", "B", "I", "W", "optimizer", "evict", "fetch")
        }
        for trace in predicted
    )
    with tempfile.TemporaryDirectory(prefix="graphpipe") as folder:
        job = RehearsalJob(
            plan=plan,
            schedule=schedule,
            seconds=seconds,
            steps=steps,
            timeout_seconds=timeout_seconds,
            folder=folder,
        )
        ranks = _run(job, len(plan.used_devices))
    lengths = [max(rank[step]["seconds"] for rank in ranks) for step in range(steps)]
    step = lengths.index(median_low(lengths))
    return assemble(plan, [rank[step] for rank in ranks], "emulated", schedule.mini_batches)


def _run(job: RehearsalJob, size: int) -> list[list[dict[str, Any]]]:
    """Run all ranks. Return the record of every step, by rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["graphpipe.run.rehearse.rehearse"])
    processes = [context.Process(target=_rank, args=(job, rank, size), daemon=True) for rank in range(size)]
    try:
        for process in processes:
            process.start()
        _wait(processes, job)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            if process.pid is not None:
                process.join()
    return [json.loads((Path(job.folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _wait(processes: Sequence[BaseProcess], job: RehearsalJob) -> None:
    end = time.monotonic() + job.timeout_seconds
    while running := [process for process in processes if process.exitcode is None]:
        wait([process.sentinel for process in running], max(0.0, end - time.monotonic()))
        if any(process.exitcode for process in processes):
            wait([process.sentinel for process in processes if process.exitcode is None], GRACE_SECONDS)
            raise _first_cause(processes, Path(job.folder))
        if time.monotonic() > end:
            raise GraphPipeError(
                f"did not end within {job.timeout_seconds:g} s, {len(running)} of {len(processes)} ranks still ran",
                where="rehearsal",
                remedy="Allow more time, rehearse fewer steps, or scale the times down.",
            )


def _first_cause(processes: Sequence[BaseProcess], folder: Path) -> GraphPipeError:
    # A rank that lost a peer failed as a consequence, so errors of other kinds come first.
    files = {rank: folder / f"{rank}.error" for rank, process in enumerate(processes) if process.exitcode}
    texts = {rank: path.read_text() if path.exists() else "" for rank, path in files.items()}
    rank = min(texts, key=lambda rank: (texts[rank].startswith("Peer"), rank))
    what = texts[rank] or f"ended with exit code {processes[rank].exitcode}"
    return GraphPipeError(what.rstrip("."), where=f"rank {rank}", remedy="The other ranks were stopped.")


def _rank(job: RehearsalJob, rank: int, size: int) -> None:
    Thread(target=_end_with_parent, daemon=True, name="graphpipe-parent-watch").start()
    try:
        recorded = _steps(job, rank, size)
        (Path(job.folder) / f"{rank}.json").write_text(json.dumps(recorded))
    except Exception as error:
        (Path(job.folder) / f"{rank}.error").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


def _end_with_parent() -> None:
    # A parent that ends normally stops its ranks first. This one was killed, so the rank must not be left behind.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _steps(job: RehearsalJob, rank: int, size: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    store = dist.FileStore(f"{job.folder}/rendezvous", size)
    timeout = timedelta(seconds=job.timeout_seconds)
    dist.init_process_group(CPU.backend, store=store, rank=rank, world_size=size, timeout=timeout)
    world, plan = join(CPU.name, job.timeout_seconds), job.plan
    placement = RankPlacement.of(plan, size)
    open_groups(plan, placement, world)
    worker = emulated_worker(plan, placement, world)
    lowered = lower(plan, job.schedule)
    devices = placement.devices(rank)
    recorded: list[dict[str, Any]] = []
    for step in range(job.steps + 1):
        seconds = job.seconds[(step - 1) % len(job.seconds)]  # the first step is not timed
        for replica in worker.replicas.values():
            replica.seconds = seconds
        worker.recorder.begin_at_once(MARGIN_SECONDS)
        batches = (_batch(plan, step * job.schedule.mini_batches + n) for n in range(job.schedule.mini_batches))
        run_step(worker, lowered, StepBatches.of([*batches]), None)
        for device in () if job.schedule.updates else devices:
            first = min(stage for stage, it in enumerate(plan.stages) if device in it.devices)
            with worker.recorder.span(device, "optimizer", first):
                sleep(seconds[device, first, "optimizer", -1])
        worker.recorder.end(devices)
        recorded.append(worker.recorder.own() | {"memory": []})
    world.leave()
    return recorded[1:]


def _batch(plan: Plan, step: int) -> MiniBatch:
    return MiniBatch(
        inputs={},
        targets=None,
        size=plan.batch_size,
        micro_batches=tuple(stage.micro_batch for stage in plan.stages),
        key=(0, step),
        training=True,
        specs=emulated_specs(plan),
        check_finite=False,
    )
