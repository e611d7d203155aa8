"""Trainings in mixed precision: importable functions of plain values, for one rank or several."""

from typing import Any

import torch
from run_checkpoints import two_groups
from run_models import BATCH, cross_entropy, fan_batch
from run_replica_syncs import CUTS, model_of, pipeline_of
from torch import Tensor

from graphpipe.model.autocast import DTYPES
from graphpipe.run import Pipeline
from graphpipe.run.checkpoint.checkpoints import Checkpoints

STEPS = 4
CUTS["whole"] = [(["stem"], [0], BATCH), (["left", "right"], [1], BATCH), (["head"], [2], BATCH)]


def steep(output: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradients are too large for float16 at the initial loss scale."""
    return 8 * cross_entropy(output, targets)


LOSSES = {"plain": cross_entropy, "steep": steep}


def build(cut: str, precision: str, loss: str, kind: str = "allreduce", **options: Any) -> tuple[Pipeline, Any]:
    """Return a pipeline in mixed precision, and the model."""
    return pipeline_of(cut, kind, precision=precision, loss_fn=LOSSES[loss], **options)


def train(cut: str, precision: str, loss: str, kinds: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Train by each engine; return losses, loss scales, gradients of the last step, dtypes, and the state."""
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        pipeline, model = build(cut, precision, loss, kind, **options)
        losses: list[float] = []
        scales: list[float] = []
        with pipeline:
            for step in range(STEPS):
                losses.append(pipeline.step(*fan_batch(seed=step)))
                scales.append(pipeline.loss_scale)
            gradients = {name: each.clone() for name, each in pipeline.gradients().items() if each is not None}
            evaluation, _ = pipeline.evaluate(*fan_batch(7, seed=99))
            pipeline.sync_model()
        found[kind] = {
            "losses": losses,
            "scales": scales,
            "gradients": gradients,
            "evaluation": evaluation,
            "state": {name: each.clone() for name, each in model.state_dict().items()},
        }
    return found


def train_unpartitioned(precision: str, loss: str, clip_norm: float | None = 0.5) -> dict[str, Any]:
    """Train the unpartitioned model as torch's recipe for automatic mixed precision does."""
    model, loss_fn = model_of(), LOSSES[loss]
    optimizer = two_groups([each for each in model.parameters() if each.requires_grad])
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    losses: list[float] = []
    scales: list[float] = []
    for step in range(STEPS):
        inputs, targets = fan_batch(seed=step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=DTYPES[precision]):
            value = loss_fn(model(**inputs), targets)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.item())
        scales.append(scaler.get_scale())
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    with torch.no_grad(), torch.autocast("cpu", dtype=DTYPES[precision]):
        inputs, targets = fan_batch(7, seed=99)
        evaluation = loss_fn(model.eval()(**inputs), targets).item()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    return {
        "losses": losses,
        "scales": scales,
        "gradients": gradients,
        "evaluation": evaluation,
        "state": state,
    }


def resume(folder: str, precision: str) -> tuple[float, list[float]]:
    """Save a float16 training after two steps, and resume it; return the loss scale found, and the losses."""
    pipeline, _ = build("whole", "fp16", "steep")
    with pipeline, Checkpoints(pipeline, folder) as checkpoints:
        for step in range(2):
            pipeline.step(*fan_batch(seed=step))
        checkpoints.save()
    pipeline, _ = build("whole", precision, "steep")
    with pipeline:
        Checkpoints(pipeline, folder).load()
        scale = pipeline.loss_scale
        return scale, [pipeline.step(*fan_batch(seed=step)) for step in range(2, STEPS)]
