"""Optimizers and schedules by name and from the task: a training by plan equals plain PyTorch, also when it resumes."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

import graphpipe as gp
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.task.task import load_task

STEPS = 6
FACTORIES = """

def own_task():
    made = task()
    def optimizer(parameters):
        vectors = [each for each in parameters if each.ndim < 2]
        matrices = [each for each in parameters if each.ndim > 1]
        groups = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices}]
        return torch.optim.NAdam([group for group in groups if group["params"]], lr=0.02, weight_decay=0.1)
    return gp.Task(
        module=made.module, example_inputs=made.example_inputs, loss_fn=made.loss_fn, epoch=epoch,
        optimizer=optimizer,
        scheduler=lambda built, steps: torch.optim.lr_scheduler.LambdaLR(built, lambda step: 1 - step / steps),
    )


def wrong_task():
    made = own_task()
    return gp.Task(
        module=made.module, example_inputs=made.example_inputs, loss_fn=made.loss_fn, epoch=epoch,
        optimizer=lambda parameters: parameters,
    )
"""
Make = Callable[[nn.Module], tuple[torch.optim.Optimizer, LRScheduler]]


def sgd(module: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler]:
    built = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return built, torch.optim.lr_scheduler.OneCycleLR(built, max_lr=0.05, total_steps=STEPS)


def adafactor(module: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler]:
    built = torch.optim.Adafactor(module.parameters(), lr=0.05, beta2_decay=-0.7)
    return built, torch.optim.lr_scheduler.StepLR(built, step_size=2)


def own(module: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler]:
    groups: list[dict[str, Any]] = [
        {"params": [each for each in module.parameters() if each.ndim < 2], "weight_decay": 0.0},
        {"params": [each for each in module.parameters() if each.ndim > 1]},
    ]
    built = torch.optim.NAdam(groups, lr=0.02, weight_decay=0.1)
    return built, torch.optim.lr_scheduler.LambdaLR(built, lambda step: 1 - step / STEPS)


CASES: dict[str, tuple[list[str], Make]] = {
    "nesterov": (
        [
            "optimizer.name=sgd",
            "optimizer.momentum=0.9",
            "optimizer.arguments.nesterov=true",
            "lr_schedule.name=OneCycleLR",
        ],
        sgd,
    ),
    "adafactor": (
        [
            "optimizer.name=Adafactor",
            "optimizer.arguments={beta2_decay=-0.7}",
            "lr_schedule.name=steplr",
            "lr_schedule.arguments.step_size=2",
        ],
        adafactor,
    ),
    "of the task": (["task=tiny.py:own_task"], own),
}


def in_plain_pytorch(make: Make) -> list[float]:
    task = load_task("tiny.py:task", ".", 0)
    assert isinstance(task.module, nn.Module)
    optimizer, schedule = make(task.module)
    assert task.epoch is not None
    batches = [batch for number in range(2) for batch in task.epoch(number, 16, 0)]
    losses: list[float] = []
    for inputs, targets in islice(batches, STEPS):
        assert isinstance(inputs, dict)
        optimizer.zero_grad()
        loss = task.loss_fn(task.module(**inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("name", CASES)
def test_a_training_equals_plain_pytorch_and_resumes(name: str, config: Path) -> None:
    with Path("tiny.py").open("a") as file:
        file.write(FACTORIES)
    overrides, make = CASES[name]
    overrides = [*overrides, "train.checkpoint_every=3", "train.check=false"]
    whole = gp.train(config, overrides=overrides, tell=None)
    losses = [step.loss for step in read_metrics_log(whole.folder.metrics_log)]
    assert losses == pytest.approx(in_plain_pytorch(make), rel=1e-4)
    with pytest.raises(gp.GraphPipeError):
        gp.train(config, overrides=[*overrides, "train.faults=['raise@rank0:step5:phase=forward']"], tell=None)
    resumed = gp.train(config, overrides=overrides, resume="runs/tiny-2", tell=None)
    assert [step.loss for step in read_metrics_log(resumed.folder.metrics_log)] == losses
    if name == "adafactor":  # its rate follows from the state of the schedule
        with pytest.raises(gp.InvalidInput, match=r"optimizer\.lr: was 0\.05, is 0\.5, and the rate of steplr follows"):
            gp.train(
                config, overrides=[*overrides, "optimizer.lr=0.5", "train.steps=8"], resume="runs/tiny-2", tell=None
            )


@pytest.mark.usefixtures("forked_ranks")
def test_a_factory_that_returns_something_else_is_named(config: Path) -> None:
    with Path("tiny.py").open("a") as file:
        file.write(FACTORIES)
    with pytest.raises(gp.GraphPipeError, match="optimizer: returned list, must return a torch Optimizer"):
        gp.train(config, overrides=["task=tiny.py:wrong_task", "train.check=false"], tell=None)
