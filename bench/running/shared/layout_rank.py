"""One rank of the benchmark `layout`: `launch("bench.running.shared.layout_rank:train", ...)`."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from bench.families.tensor_gradients import placed
from bench.running.engines import adamw
from bench.running.shared.layers import loss_fn
from bench.running.shared.vision import inputs, vision_language
from graphpipe.plans import Plan
from graphpipe.run import Pipeline

_STEPS = 2


def train(file: str) -> None:
    """Train by a plan, and write how far loss and gradients of each step are from those of plain PyTorch."""
    torch.set_num_threads(1)
    plan, given, module, plain = Plan.load(file), inputs(), vision_language(), vision_language()
    optimizer, targets = adamw([*plain.parameters()]), given["tokens"].roll(1)
    distances: list[float] = []
    with Pipeline(plan, module, loss_fn, adamw) as pipeline:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            loss = loss_fn(plain(**given), targets)
            loss.backward()
            away = [abs(pipeline.step(given, targets) - loss.item()) / abs(loss.item())]
            expected = {name: each.grad for name, each in plain.named_parameters() if each.grad is not None}
            found = {name: each for name, each in pipeline.gradients().items() if each is not None}
            away += [_distance(each, expected[name]) for name, each in placed(found, expected).items()]
            distances.append(max(away))
            optimizer.step()
        rank = dist.get_rank()
    Path(f"{file}.{rank}").write_text(json.dumps(distances))


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
