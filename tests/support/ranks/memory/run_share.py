"""What a rank of a model without data holds, as a multiple of the weights, gradients and state of its stages."""

import threading
import time
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

WIDE, BATCH = 1536, 4


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
    """Train, save and load with AdamW. The base is what the process held after the capture."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4 * stages)))
    values, targets = torch.randn(BATCH, WIDE), torch.randint(WIDE, (BATCH,))
    graph, cluster = gp.capture(model, values), cluster_of(stages)
    names = list(graph.order)
    hand = [gp.HandStage(ops=tuple(names[4 * at : 4 * at + 4]), devices=(at,), micro_batch=2) for at in range(stages)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH, stages=hand)
    base, own = anonymous(), 4.0 * 4 * 4 * (WIDE * WIDE + WIDE)  # copies, bytes and layers
    with peak() as start:
        pipeline = gp.Pipeline(plan, model, cross_entropy, adam)
    with pipeline:
        for _ in range(2):
            pipeline.step(values, targets)
        time.sleep(0.1)
        steady = anonymous()
        checkpoints = gp.Checkpoints(pipeline, folder)
        with peak() as saving:
            checkpoints.save()
        with peak() as loading:
            checkpoints.load()
    found = {"start": start.most, "steady": steady, "saving": saving.most, "loading": loading.most}
    return {name: (most - base) / own for name, most in found.items()}
