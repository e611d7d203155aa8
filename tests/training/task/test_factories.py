"""Optimizers and schedules that a pipeline cannot step, or that follow nothing, are refused before planning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import graphpipe as gp
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.factories import check_factories

SETTINGS = "task = 'tiny.py:task'\ncluster = 'local:1'\n[train]\nbatch_size = 4\nsteps = 2\n"


def samples() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 1))


def task(**options: Any) -> gp.Task:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.randn(2, 4)
    return gp.Task(module=module, example_inputs=x, loss_fn=nn.functional.mse_loss, dataset=samples(), **options)


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., TrainConfig]:
    def read(*overrides: str) -> TrainConfig:
        file = tmp_path / "own.toml"
        file.write_text(SETTINGS)
        return read_config(file, overrides)

    return read


def check(config: TrainConfig, checked: gp.Task) -> list[str]:
    told: list[str] = []
    check_factories(config, checked, told.append)
    return told


class OwnStep(torch.optim.LBFGS):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def plateau(mode: str = "min") -> Callable[..., Any]:
    return lambda built, steps: lr_scheduler.ReduceLROnPlateau(built, mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, OwnStep])
def test_an_optimizer_that_needs_a_closure(optimizer: Any, configured: Callable[..., TrainConfig]) -> None:
    """With measured costs, its step ended the profile with a TypeError; with others it was found by the ranks."""
    with pytest.raises(gp.InvalidInput, match=rf"optimizer: {optimizer.__name__}.step\(\) needs 'closure'"):
        check(configured(), task(optimizer=optimizer))


@pytest.mark.parametrize(
    ("overrides", "held_out", "mode", "found"),
    [
        ([], True, "min", r"scheduler: follows the evaluations of the training, which makes none"),
        (["train.eval_every=1"], False, "min", r"scheduler: follows evaluations, and the task has no held-out samples"),
        (
            ["train.eval_every=1"],
            True,
            "max",
            r"scheduler: has mode 'max', and evaluation.watch is 'loss' with mode 'min'",
        ),
        (["train.eval_every=1", "evaluation.watch=accuracy"], True, "min", r"'accuracy' with mode 'max'"),
    ],
)
def test_a_plateau_of_the_task_that_follows_nothing(
    overrides: list[str], held_out: bool, mode: str, found: str, configured: Callable[..., TrainConfig]
) -> None:
    """No evaluation was made, or none was given, and the rate stayed as it was without a word."""
    with pytest.raises(gp.InvalidInput, match=found):
        check(configured(*overrides), task(scheduler=plateau(mode), held_out=samples() if held_out else None))


def test_a_plateau_that_follows_evaluations(configured: Callable[..., TrainConfig]) -> None:
    assert not check(configured("train.eval_every=1"), task(scheduler=plateau(), held_out=samples()))
    config = configured("train.eval_every=1", "evaluation.watch=accuracy", "lr_schedule.name=ReduceLROnPlateau")
    assert not check(config, task(held_out=samples()))


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["lr_schedule.name=StepLR"], "StepLR refuses its arguments: .*'step_size'"),
        (["lr_schedule.name=OneCycleLR", "lr_schedule.arguments={pct_start=3.0}"], "OneCycleLR refuses its arguments"),
    ],
)
def test_a_schedule_that_torch_refuses(
    overrides: list[str], found: str, configured: Callable[..., TrainConfig]
) -> None:
    with pytest.raises(gp.InvalidInput, match=rf"lr_schedule.arguments: {found}"):
        check(configured(*overrides), task())


def test_settings_that_the_task_replaces_are_named(configured: Callable[..., TrainConfig]) -> None:
    """A rate on the command line was dropped in silence, where the task builds the optimizer."""
    own = task(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), scheduler=plateau(), held_out=samples()
    )
    config = configured("optimizer.lr=0.5", "lr_schedule.name=cosine", "train.eval_every=1")
    assert check(config, own) == ["not used, because the task builds its own: optimizer.lr, lr_schedule.name"]
    assert not check(config, task())


def test_a_factory_that_looks_for_its_own_parameters_is_left_to_the_ranks(
    configured: Callable[..., TrainConfig],
) -> None:
    """Copies are not the model's parameters, so such a factory may find none among them."""
    first = task()
    chosen = {id(each) for each in first.model.parameters()}

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD([each for each in parameters if id(each) in chosen], lr=0.1)

    assert not check(configured(), task(optimizer=optimizer))
