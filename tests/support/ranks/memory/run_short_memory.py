"""A model whose first layer holds nearly all parameters, trained by a plan or without one."""

import torch
from torch import Tensor, nn

from graphpipe.plans import Plan
from graphpipe.run import Pipeline

BATCH = 8


def large_layer() -> nn.Sequential:
    """Return the model, which is the same every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 3))


def samples(step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs and targets of a step."""
    random = torch.Generator().manual_seed(step)
    return {"input": torch.randn(BATCH, 64, generator=random)}, torch.randn(BATCH, 3, generator=random)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of both trainings."""
    return torch.optim.Adam(parameters, lr=1e-2)


def train_planned(plan_file: str, steps: int) -> tuple[list[float], list[Tensor]]:
    """Train by a plan; return the losses and the weights."""
    model = large_layer()
    with Pipeline(Plan.load(plan_file), model, nn.functional.mse_loss, adam) as pipeline:
        losses = [pipeline.step(*samples(step)) for step in range(steps)]
        pipeline.sync_model()
    return losses, [each.detach().clone() for each in model.parameters()]


def train_plainly(steps: int) -> tuple[list[float], list[Tensor]]:
    """Train in plain PyTorch; return the losses and the weights."""
    model, losses = large_layer(), list[float]()
    optimizer = adam([*model.parameters()])
    for step in range(steps):
        inputs, targets = samples(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs["input"]), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [each.detach() for each in model.parameters()]
