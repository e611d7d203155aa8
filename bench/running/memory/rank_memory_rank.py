"""The ranks of `rank_memory.py`: under torchrun with `gp.Pipeline`, or as the task of `graphpipe train`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import graphpipe as gp
from bench.running.memory.memory_watch import MemoryWatch

NOTES = "GRAPHPIPE_MEMORY_NOTES"
"""The environment variable that names the folder of the notes, and of the job."""
WIDE, LAYERS, BATCH, STEPS = 4096, 16, 8, 4
"""1 GiB of weights. A layer has 64 MiB, because the allocator keeps freed memory of less than 32 MiB."""
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
COPIES = {"sgd": 2, "adamw": 4}
"""Weights, gradients and state, as a multiple of the weights."""


def build() -> nn.Module:
    """Return the model."""
    return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(LAYERS)))


def batch() -> tuple[Tensor, Tensor]:
    """Return inputs and targets, the same in every step and on every rank."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, WIDE, generator=generator), torch.randint(WIDE, (BATCH,), generator=generator)


def plan_of(ranks: int) -> gp.Plan:
    """Return the plan with equally many layers on each rank."""
    graph, cluster = gp.capture(build, batch()[0]), gp.Cluster.preset(f"local:{ranks}")
    names, each = list(graph.order), LAYERS // ranks
    stages = [
        gp.HandStage(ops=tuple(names[at * each : (at + 1) * each]), devices=(at,), micro_batch=2) for at in range(ranks)
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH, stages=stages)


def task() -> gp.Task:
    """Return the task of `graphpipe train`."""
    watch = None

    def epoch(number: int, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(STEPS):
            if watch is not None:
                _note_step(watch, step)
            yield batch()

    made = gp.Task(module=build, example_inputs=batch()[0], loss_fn=nn.functional.cross_entropy, epoch=epoch)
    watch = _watch() if "RANK" in os.environ else None
    return made


def _note_step(watch: MemoryWatch, step: int) -> None:
    # A mini-batch may be read while the one before it trains.
    if step == 1:
        watch.phase("training")
    if step >= STEPS - 2:
        watch.mark("steady")
    if step == STEPS - 1:
        watch.phase("saving")


def _watch() -> MemoryWatch:
    return MemoryWatch(Path(os.environ[NOTES], f"{os.environ['RANK']}.json"))


def pipeline() -> None:
    """Train and save with `gp.Pipeline`, as torchrun starts it."""
    torch.set_num_threads(1)
    job = json.loads(Path(os.environ[NOTES], "job").read_text())
    plan = gp.Plan.load(job["plan"])
    gp.capture(build, batch()[0])  # what it imports is part of the base
    watch = _watch()
    torch.manual_seed(0)  # all ranks must make the same model
    model = build() if job["data"] else build
    optimizer = OPTIMIZERS[job["optimizer"]]
    with gp.Pipeline(plan, model, nn.functional.cross_entropy, lambda each: optimizer(each, lr=1e-3)) as pipe:
        for step in range(STEPS):
            _note_step(watch, step)
            pipe.step(*batch())
        gp.Checkpoints(pipe, Path(os.environ[NOTES], "checkpoints")).save()


if __name__ == "__main__":
    pipeline()
