"""Settings of a resumed run that were printed as changed, and were not applied: each is applied, or refused by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import graphpipe as gp
from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.training.changed_settings import changed_settings
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.config.optimizers import apply_settings
from graphpipe.training.config.resumed_settings import check_optimizer, check_own, check_schedule
from graphpipe.training.config.settings import TrainConfig

SETTINGS = "task = 'tiny.py:task'\ncluster = 'local:1'\n[train]\nbatch_size = 4\nsteps = 8\neval_every = 2\n"


def read(folder: Path, *overrides: str) -> TrainConfig:
    file = folder / "own.toml"
    file.write_text(SETTINGS)
    return read_config(file, overrides)


def resume(folder: Path, then: Sequence[str], now: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    before, config = read(folder, *then), read(folder, *now)
    changed = changed_settings(before, config)
    check_optimizer(before.optimizer, config.optimizer, changed)
    check_schedule(config.lr_schedule, changed)
    return changed


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ([], ["optimizer.name=sgd"], "optimizer.name: the run was trained with adamw"),
        ([], ["optimizer.groups=[{match=['*'], name='sgd'}]"], "optimizer.groups: give parameters other classes"),
        (
            [],
            ["optimizer.arguments.amsgrad=true"],
            "optimizer.arguments.amsgrad: was unset, is True, and the checkpoint",
        ),
        (["optimizer.name=rmsprop"], ["optimizer.name=rmsprop", "optimizer.momentum=0.9"], "has no state for it"),
        (
            ["lr_schedule.name=OneCycleLR"],
            ["lr_schedule.name=OneCycleLR", "train.steps=12"],
            "train.steps: was 8, is 12, and the rate of OneCycleLR follows",
        ),
        (
            ["lr_schedule.name=CosineAnnealingLR"],
            ["lr_schedule.name=CosineAnnealingLR", "train.epochs=3"],
            "train.epochs: was unset, is 3",
        ),
        (
            ["lr_schedule.name=ExponentialLR", "lr_schedule.arguments.gamma=0.5", "optimizer.arguments.eps=0.1"],
            ["lr_schedule.name=ExponentialLR", "lr_schedule.arguments.gamma=0.5"],
            "optimizer.arguments.eps: was 0.1, is unset",
        ),
        (
            ["lr_schedule.name=ReduceLROnPlateau"],
            ["lr_schedule.name=ReduceLROnPlateau", "evaluation.watch=accuracy"],
            "evaluation.watch: was loss, is accuracy",
        ),
        (
            ["lr_schedule.name=StepLR", "lr_schedule.arguments.step_size=2"],
            ["lr_schedule.name=cosine"],
            "StepLR follows",
        ),
    ],
)
def test_what_the_checkpoint_excludes(then: list[str], now: list[str], found: str, tmp_path: Path) -> None:
    with pytest.raises(gp.InvalidInput, match=found):
        resume(tmp_path, then, now)


@pytest.mark.parametrize(
    ("then", "now", "keys"),
    [
        ([], ["train.steps=12", "lr_schedule.name=cosine", "lr_schedule.warmup_steps=2"], 3),
        (["optimizer.arguments={betas=[0.8, 0.9]}"], [], 1),
        (["optimizer.name=sgd"], ["optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.5"], 2),
        (
            ["lr_schedule.name=CosineAnnealingLR", "lr_schedule.arguments.T_max=30"],
            ["lr_schedule.name=CosineAnnealingLR", "lr_schedule.arguments.T_max=30", "train.steps=12"],
            1,
        ),
    ],
)
def test_what_is_applied_is_named(then: list[str], now: list[str], keys: int, tmp_path: Path) -> None:
    assert len(resume(tmp_path, then, now)) == keys


def test_an_argument_that_was_taken_out_has_its_default_again(tmp_path: Path) -> None:
    """The one of the checkpoint stayed, and nothing was said."""
    parameter = nn.Parameter(torch.zeros(2))
    built = torch.optim.AdamW([parameter], lr=0.1)
    built.param_groups[0]["betas"] = (0.5, 0.6)  # as a checkpoint leaves them
    scheduled = ScheduledOptimizer(optimizer=built, scheduler=LambdaLR(built, lambda step: 1.0))
    settings = read(tmp_path).optimizer
    apply_settings([scheduled], lambda _: settings.of_groups(()))
    assert built.param_groups[0]["betas"] == (0.9, 0.999)
    assert built.param_groups[0]["lr"] == settings.lr


def test_what_the_task_builds_itself_is_refused() -> None:
    """The new rate was printed, and the task's optimizer kept its own."""
    with pytest.raises(gp.InvalidInput, match=r"optimizer\.lr: was changed, and the task builds its own optimizer"):
        check_own({"optimizer.lr": (0.1, 0.2)}, {"optimizer": True, "lr_schedule": False})
    check_own({"lr_schedule.name": ("constant", "cosine")}, {"optimizer": True, "lr_schedule": False})
