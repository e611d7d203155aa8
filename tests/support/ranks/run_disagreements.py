"""Two ranks of which one gets other data, or has other weights."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import graphpipe as gp

STEPS, SAMPLES = 12, 8


def model(seed: int = 0) -> nn.Module:
    """Return two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the mini-batch of a step."""
    draw = torch.Generator().manual_seed(step)
    return torch.randn(SAMPLES, 4, generator=draw), torch.randint(3, (SAMPLES,), generator=draw)


def pipeline_of(module: nn.Module, *, replicas: bool, **options: Any) -> gp.Pipeline:
    """Return a pipeline of two stages, or of one with two replicas."""
    graph, cluster = gp.capture(module, batch(0)[0]), gp.Cluster.preset("local:2")
    stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
    if not replicas:
        stages = [gp.HandStage(ops=(name,), devices=(n,), micro_batch=4) for n, name in enumerate(graph.order)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=SAMPLES, stages=stages)
    given = gp.PipelineOptions(timeout_seconds=20, **options)
    return gp.Pipeline(plan, module, nn.functional.cross_entropy, sgd, options=given)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer."""
    return torch.optim.SGD(parameters, lr=0.1)


def steps_until_noticed(how: str, replicas: bool) -> int:
    """Train with other data on rank 1 from the sixth step on, and return the step before which that was noticed."""
    pipeline, other = pipeline_of(model(), replicas=replicas), dist.get_rank() == 1
    for step in range(STEPS):
        inputs, targets = batch(step + (how == "shifted" and other and step >= 5))
        if other and step >= 5 and how == "one sample":
            inputs[3, 1] += 1.0
        try:
            pipeline.step(inputs, targets)
        except gp.InvalidInput:
            return step
        except (gp.PeerLost, gp.PeerStalled):
            return step
    return STEPS


def message_of_positions() -> str:
    """Train the same samples from another place in the data, and return the error."""
    rank = dist.get_rank()
    pipeline = pipeline_of(model(), replicas=False, position=lambda: f"epoch {rank}, mini-batch 4")
    return error_of(pipeline)


def message_of_weights() -> str:
    """Train with other initial weights on rank 1, and return the error."""
    return error_of(pipeline_of(model(dist.get_rank()), replicas=False))


def error_of(pipeline: gp.Pipeline) -> str:
    """Return the error of a step."""
    try:
        pipeline.step(*batch(0))
    except gp.GraphPipeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def message_of_replicas(folder: str) -> str:
    """Change a weight of one replica, and return the error of the next checkpoint."""
    module = model()
    with pipeline_of(module, replicas=True) as pipeline, gp.Checkpoints(pipeline, Path(folder)) as checkpoints:
        pipeline.step(*batch(0))
        checkpoints.save()
        checkpoints.wait()
        if dist.get_rank() == 1:
            with torch.no_grad():
                next(iter(module.parameters())).view(-1)[5] += 0.1
        try:
            checkpoints.save()
        except gp.InvalidInput as error:
            return str(error)
    return ""


def message_after_resume(folder: str) -> str:
    """Resume on both ranks with other values in the middle of a mini-batch on rank 1, and return the error."""
    pipeline = pipeline_of(model(dist.get_rank()), replicas=False)  # the checkpoint has the weights
    checkpoints = gp.Checkpoints(pipeline, Path(folder))
    if not Path(folder).exists():
        return "no checkpoint"
    checkpoints.load()
    inputs, targets = batch(1)
    if dist.get_rank() == 1:
        inputs[4, 2] += 1.0
    try:
        pipeline.step(inputs, targets)
    except gp.GraphPipeError as error:
        return str(error)
    return ""


def make_checkpoint(folder: str) -> float:
    """Train a step and save it."""
    with pipeline_of(model(), replicas=False) as pipeline, gp.Checkpoints(pipeline, Path(folder)) as checkpoints:
        loss = pipeline.step(*batch(0))
        checkpoints.save()
    return loss
