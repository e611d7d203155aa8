"""One rank of the benchmark of predictions: `launch("bench.running.predicted.prediction_rank:train", ...)`."""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.running.engines import adamw
from bench.running.predicted.allocations import marking_host_memory, most_allocated
from bench.running.predicted.pace import pace
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.weights import sharded_tensors
from graphpipe.run.weights.zero1 import local_optimizer


def train(job: str) -> None:
    """Take steps in blocks, and write what they took, what the machine did meanwhile, and the peak of one step."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    torch.set_num_threads(1)
    plan = Plan.load(case["plan"])
    torch.manual_seed(0)
    model = zoo_model(case["model"])
    inputs, targets = model.batch(torch.Generator().manual_seed(0), plan.batch_size)
    with Pipeline(plan, model.module, model.loss_fn, adamw, options=PipelineOptions(record=True)) as pipeline:
        rank = pipeline.world.rank
        for _ in range(case["warmup"]):
            pipeline.step(inputs, targets)
        blocks = [_block(pipeline, inputs, targets, case["steps"], job, number) for number in range(case["blocks"])]
        own = {"blocks": blocks, "peak_bytes": peak_bytes(pipeline, inputs, targets, Path(f"{job}.memory-{rank}"))}
    Path(f"{job}.rank-{rank}").write_text(json.dumps(own))


def _block(
    pipeline: Pipeline, inputs: dict[str, Tensor], targets: Tensor, steps: int, job: str, number: int
) -> dict[str, Any]:
    # Steps in a row are timed, as training takes them. A recorded step and its trace before each of them would leave
    # the caches cold: gpt-small then took 2 % longer on 4 ranks, and 5 % on 2 replicas. All ranks look at the pace at
    # the same time.
    dist.barrier()
    found = pace()
    before, start, own = psutil.cpu_times(), time.perf_counter(), time.process_time()
    pipeline.recording = False
    pipeline.step(inputs, targets)
    timed: list[tuple[float, float]] = []
    for _ in range(steps):
        began = time.perf_counter(), time.process_time()
        pipeline.step(inputs, targets)
        timed.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    pipeline.recording = True
    for step in range(steps):
        pipeline.step(inputs, targets)
        trace = pipeline.trace()  # Every rank gets the whole trace; rank 0 keeps it.
        if pipeline.world.rank == 0:
            trace.save(f"{job}.trace-{number}-{step}")
    after = psutil.cpu_times()
    idle = (after.idle + after.iowait) - (before.idle + before.iowait)
    own, seconds = time.process_time() - own, time.perf_counter() - start
    dist.barrier()
    return {"seconds": seconds, "own": own, "idle": idle, "timed": timed, "pace": max(found, pace())}


def peak_bytes(
    pipeline: Pipeline, inputs: dict[str, Tensor], targets: Tensor, file: Path, mini_batches: int = 1
) -> float:
    """Take a step, and return the most bytes that torch had allocated on this rank, less what was offloaded.

    Args:
        pipeline: that has taken a step before.
        inputs: of a mini-batch.
        targets: of the same.
        file: for torch's profiler.
        mini_batches: to train on in a row, as one segment.
    """
    # Parameters and optimizer state are there before; the profiler sees all that a step allocates, gradients too.
    optimizers = [local_optimizer(scheduled.optimizer) for scheduled in pipeline.state.optimizers]
    groups = [group for scheduled in pipeline.state.optimizers for group in scheduled.optimizer.param_groups]
    parameters = [each for group in groups for each in group["params"]]
    slots = [value for optimizer in optimizers for kept in optimizer.state.values() for value in kept.values()]
    held = [value for value in slots if isinstance(value, Tensor)]
    if mini_batches == 1:
        held += parameters
    with marking_host_memory(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        if mini_batches > 1:  # A segment frees the memory of weights, and the profiler must have seen where it began.
            for parameter in parameters:
                parameter.data = parameter.data.clone()
        pipeline.segment([(inputs, targets)] * mini_batches)
    profiler.export_chrome_trace(str(file))
    allocated, _ = most_allocated(json.loads(file.read_text())["traceEvents"])
    return float(sum(sharded_tensors.own(tensor).nbytes for tensor in held)) + allocated
