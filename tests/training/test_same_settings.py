"""Under torchrun every rank reads the configuration: one with another learning rate trained its stages by that."""

from dataclasses import replace
from typing import Any

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.training.config.same_settings import check_same_settings
from graphpipe.training.config.settings import TrainConfig, TrainSettings


class Two(World):
    """This rank beside one with another configuration."""

    def __init__(self, other: TrainConfig) -> None:
        self.found: list[Any] = []
        self.other = other

    def exchange(self, value: object) -> list[Any]:
        self.found.append(value)
        if len(self.found) == 1:
            check_same_settings(self, self.other)
        return [*self.found]


def config(**changes: Any) -> TrainConfig:
    train = TrainSettings(batch_size=8, steps=4)
    made = TrainConfig(task="task.py:task", cluster="local:2", folder="/here", train=train)
    optimizer = replace(made.optimizer, lr=changes.pop("lr", 0.1))
    return replace(made, optimizer=optimizer, **changes)


def test_another_learning_rate_on_one_rank_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"optimizer.lr: is 0.5 on rank 1, and 0.1 on rank 0. Start every rank with"):
        check_same_settings(Two(config(lr=0.5)), config())


def test_where_a_rank_runs_may_differ() -> None:
    run = replace(config().run, directory="/scratch/runs")
    check_same_settings(Two(config(folder="/there", run=run)), config())
