"""What a rank of a model without data holds, as a multiple of the weights, gradients and state of its stages."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from run_meta import adam
from run_plans import cluster_of
from torch import nn
from torch.nn.functional import cross_entropy

import graphpipe as gp

WIDE, LAYERS, BATCH = 3072, 2, 4
"""Weights of 36 MiB. The allocator keeps freed memory of less than 32 MiB, which would count here."""


def anonymous() -> int:
    """Return the bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@dataclass
class Peak:
    """The most that a block held."""

    most: int = 0


@contextmanager
def peak() -> Generator[Peak]:
    """Watch a block."""
    found, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            found.most = max(found.most, anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def held(stages: int, folder: str) -> dict[str, float]:
    """Train and save with AdamW, and load in a new pipeline. The base is what the process held after the capture."""
    values, targets = torch.randn(BATCH, WIDE), torch.randint(WIDE, (BATCH,))
    graph, cluster = gp.capture(_model(stages), values), cluster_of(stages)
    names = list(graph.order)
    hand = [
        gp.HandStage(ops=tuple(names[LAYERS * at : LAYERS * (at + 1)]), devices=(at,), micro_batch=2)
        for at in range(stages)
    ]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH, stages=hand)
    base, own = anonymous(), 4.0 * 4 * LAYERS * (WIDE * WIDE + WIDE)  # copies, and bytes of an element
    with peak() as start:
        pipeline = gp.Pipeline(plan, _model(stages), cross_entropy, adam)
    with pipeline:
        for _ in range(2):
            pipeline.step(values, targets)
        steady = anonymous()
        with peak() as saving:
            gp.Checkpoints(pipeline, folder).save()
    del pipeline
    gc.collect()
    with peak() as loading, gp.Pipeline(plan, _model(stages), cross_entropy, adam) as pipeline:
        gp.Checkpoints(pipeline, folder).load()
    found = {"start": start.most, "steady": steady, "saving": saving.most, "loading": loading.most}
    return {name: (most - base) / own for name, most in found.items()}


def _model(stages: int) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(LAYERS * stages)))
