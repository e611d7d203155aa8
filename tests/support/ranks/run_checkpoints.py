"""Trainings that save and load checkpoints: importable functions of plain values, for one rank or several."""

import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from run_models import BATCH, STAGES, cross_entropy, fan, fan_batch
from run_plans import captured_plan, hand_split, plan_of
from torch import Tensor, nn

from graphpipe.errors import PeerStalled
from graphpipe.model import DagModule
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.faults.rank_status import STATUS_FOLDER, read_status
from graphpipe.training.config.optimizer_settings import ScheduleSettings
from graphpipe.training.config.optimizers import scheduler_factory

STEPS = 7
COSINE = scheduler_factory(ScheduleSettings(name="cosine", warmup_steps=2), STEPS)


def two_groups(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """AdamW that decays only matrices, as usual; a rank without vectors has one group.

    With AdamW's default `eps`, an update is a full step however small its gradient is. A gradient that batch norm
    nearly cancels would then make results depend on the order in which a processor adds.
    """
    groups = [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.1, "lr": 0.05},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0, "lr": 0.02},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], eps=1e-2)


def pipeline_of(cut: str, *, dropout: float = 0.0, norm: bool = False, **options: Any) -> tuple[Pipeline, DagModule]:
    """Return a pipeline of `fan` in training with a learning-rate schedule, and the model."""
    model, (inputs, _) = fan(dropout, norm), fan_batch()
    plan = plan_of(model, inputs, STAGES[cut], BATCH)
    optimizer = options.pop("optimizer", two_groups)
    given = PipelineOptions(**{"lr_scheduler": COSINE, "clip_norm": 0.5} | options)
    return Pipeline(plan, hand_split(model, plan, inputs), cross_entropy, optimizer, options=given), model


def train_uninterrupted(cut: str, **options: Any) -> dict[str, Any]:
    """Train all steps."""
    pipeline, model = pipeline_of(cut, **options)
    return train_on(pipeline, model)


def train_on(pipeline: Pipeline, model: nn.Module) -> dict[str, Any]:
    """Train to the last step; return the losses and the whole model's state."""
    with pipeline:
        losses = [pipeline.step(*fan_batch(seed=step)) for step in range(pipeline.steps, STEPS)]
        pipeline.sync_model()
    return {"losses": losses, "state": {name: each.clone() for name, each in model.state_dict().items()}}


def train_and_save(cut: str, folder: str, save_after: list[int], options: dict[str, Any]) -> None:
    """Train to the last of the given steps, with a checkpoint after each of them."""
    pipeline, _ = pipeline_of(cut, **options)
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        for step in range(max(save_after)):
            pipeline.step(*fan_batch(seed=step))
            if pipeline.steps in save_after:
                checkpoints.save(DataPosition(batch=pipeline.steps))


def train_with_faults(cut: str, folder: str, faults: list[str], seconds: float) -> list[float]:
    """Train three steps with a checkpoint after each, and with faults; return the losses.

    Without a launcher, rank 0 does the launcher's work: it kills rank 1 if that is stopped.
    """
    launched = not dist.is_initialized()
    if not launched:
        os.environ[STATUS_FOLDER] = folder
    log = Path(folder) / "faults.jsonl"
    try:
        pipeline, _ = pipeline_of(cut, faults=parse_faults(faults), fault_log=log, timeout_seconds=seconds)
        losses: list[float] = []
        with pipeline, Checkpoints(pipeline, Path(folder) / "checkpoints") as checkpoints:
            for seed in range(3):
                losses.append(pipeline.step(*fan_batch(seed=seed)))
                checkpoints.save()
                checkpoints.wait()
    except PeerStalled:
        if not launched and (other := read_status(folder, 1)):
            os.kill(other.pid, signal.SIGKILL)
        raise
    return losses


def resume(cut: str, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """Resume from the newest valid checkpoint with a model of other initial weights."""
    pipeline, model = pipeline_of(cut, **options)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)
    training = Checkpoints(pipeline, folder).load()
    assert (training.step, training.position.batch) == (pipeline.steps, pipeline.steps)
    return {"step": training.step, **train_on(pipeline, model)}


def fill_the_disk(cut: str, folder: str) -> list[str]:
    """Save once; then rank 1 may write no more than 100 bytes to a file, and saving fails."""
    pipeline, _ = pipeline_of(cut)
    checkpoints = Checkpoints(pipeline, folder)
    pipeline.step(*fan_batch())
    checkpoints.save()
    checkpoints.wait()
    pipeline.step(*fan_batch())
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    message = ""
    try:
        checkpoints.save()
    except ValueError as error:
        message = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pipeline.step(*fan_batch())
    checkpoints.save()
    checkpoints.wait()
    return [message, str(pipeline.steps)]


def save_until_killed(folder: str, log: str, background: bool) -> None:
    """Save a checkpoint every step until killed. Log the step and the seconds of each complete one."""
    pipeline, _ = pipeline_of("shared", lr_scheduler=None)
    checkpoints = Checkpoints(pipeline, folder, background=background)
    if Path(folder).exists():
        checkpoints.load()
    while True:
        pipeline.step(*fan_batch())
        start = time.monotonic()
        checkpoints.save()
        checkpoints.wait()
        with Path(log).open("a") as file:
            print(pipeline.steps, time.monotonic() - start, file=file, flush=True)


class Tied(nn.Module):
    """Two towers. One ties its weights, the other has every kind of buffer. One more part is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.left = TiedTower()
        self.right = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8))
        self.right.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)
        self.left.encode.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.left(x) + self.right(x))


class TiedTower(nn.Module):
    """Encodes and decodes with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 8)
        self.decode = nn.Linear(5, 8, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x) + self.decode(x).tanh()


TIED_CUT = [(["left"], [0], 6), (["right"], [1], 6), (["head"], [0], 12)]


def tied_pipeline(seed: int = 0) -> tuple[Pipeline, Tied]:
    """Return a pipeline of `Tied`, captured, and the model."""
    torch.manual_seed(seed)
    model = Tied()
    inputs = {"x": fan_batch()[0]["x"]}
    plan = captured_plan(model, inputs, TIED_CUT, BATCH)
    return Pipeline(plan, model, cross_entropy, two_groups), model


def train_tied(folder: str) -> dict[str, Any]:
    """Train `Tied` two steps with a checkpoint after each, and return the whole model's state."""
    pipeline, model = tied_pipeline()
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        for seed in range(2):
            inputs, targets = fan_batch(seed=seed)
            pipeline.step({"x": inputs["x"]}, targets)
            checkpoints.save()
        checkpoints.wait()
        pipeline.sync_model()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
