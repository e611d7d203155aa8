"""A training by one plan after the other in one process, for those that change their plan on the way."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from graphpipe.plans import Plan
from graphpipe.training import train_rank as training
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import load_task


def unbroken(config: TrainConfig, folder: Path, plans: Iterable[tuple[Plan, int]]) -> dict[str, torch.Tensor]:
    """Train by each plan to its last step; return the weights.

    Args:
        config: of the training; its steps and faults do not count.
        folder: for the run; it is made.
        plans: in order, each with the number of the last step it is used for.
    """
    torch.set_num_threads(1)
    folder.mkdir()
    for number, (plan, last) in enumerate(plans):
        part = replace(config, train=replace(config.train, steps=last, epochs=None, faults=()))
        task = load_task(config.task, config.folder, config.train.seed)
        assert training.train(part, task, plan, folder, resume=number > 0) is not None
    return load_file(folder / training.WEIGHTS)
