"""Trains with one plan after another in one process, for comparison with elastic runs."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from graphpipe.plans import Plan
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import load_task
from graphpipe.training.train_rank import train_rank


def train_uninterrupted(config: TrainConfig, path: Path, plans: Iterable[tuple[Plan, int]]) -> dict[str, torch.Tensor]:
    """Train with each plan up to its last step, and return the weights.

    Args:
        config: the training's settings. Its steps and faults are not used.
        path: the run's folder, which is created.
        plans: the plans in order, each with its last step.
    """
    torch.set_num_threads(1)
    path.mkdir()
    folder = RunFolder(path)
    for number, (plan, last) in enumerate(plans):
        part = replace(config, train=replace(config.train, steps=last, epochs=None, faults=()))
        task = load_task(config.task, config.folder, config.train.seed)
        assert train_rank(part, task, plan, folder, resume=number > 0) is not None
    return load_file(folder.weights)
