"""A two-tower model whose ranks may allocate only so much memory."""

import ctypes
import resource
from pathlib import Path

import torch

from bench.running.engines import adamw
from graphpipe.errors import OutOfMemory, PeerLost
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.zoo.two_tower import SMALL, build
from graphpipe.model.zoo.zoo_model import ZooModel
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions

STEPS = 2
_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of mallopt(3)."""


def two_towers() -> ZooModel:
    """Return the model, which is the same every time."""
    torch.manual_seed(0)
    return build(SMALL, "cpu")


def train_capped(folder: str, files: list[str], cap: float | None) -> list[list[float] | str]:
    """Train by some plans, one after the other, and return the losses of each, or its error.

    Args:
        folder: of the capture and the plans.
        files: of the plans.
        cap: the most bytes that a rank may allocate after the model and the pipeline are built; None: any number.
    """
    torch.set_num_threads(1)
    found: list[list[float] | str] = []
    for file in files:
        try:
            found.append(_train(Path(folder), file, cap))
        except (OutOfMemory, PeerLost) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def _train(folder: Path, file: str, cap: float | None) -> list[float]:
    plan, zoo = Plan.load(folder / file), two_towers()
    options = PipelineOptions(captured=load_capture(folder / "capture.json", plan.graph))
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), plan.batch_size)
    # The first backward of a process starts threads in builds for CUDA. Their stacks, of 8 MiB each, do not count.
    torch.ones((), requires_grad=True).backward()
    with Pipeline(plan, zoo.module, zoo.loss_fn, adamw, options=options) as pipeline:
        if cap is not None:
            _limit(cap)
        try:
            return [pipeline.step(inputs, targets) for _ in range(STEPS)]
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _limit(cap: float) -> None:
    # Large tensors get memory of their own, which the system has back when they are freed.
    assert ctypes.CDLL(None).mallopt(_THRESHOLD, 2**16)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now = int(status["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + int(cap), resource.RLIM_INFINITY))
