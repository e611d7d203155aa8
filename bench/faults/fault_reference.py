"""Train by each plan up to a step, without a fault.

python -m bench.faults.fault_reference CONFIG FOLDER PLAN:STEP...
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import load_task
from graphpipe.training.train_locally import RANK_ENTRY
from graphpipe.training.train_rank import train_rank


def main(words: list[str]) -> None:
    """Train, and leave weights and losses in the folder."""
    torch.set_num_threads(1)
    config, folder = TrainConfig.load(words[0]), RunFolder(Path(words[1]))
    folder.path.mkdir()
    for number, word in enumerate(words[2:]):
        plan, _, last = word.rpartition(":")
        part = replace(config, train=replace(config.train, steps=int(last), faults=()))
        _train(part, Plan.load(plan), folder, resume=number > 0)


def _train(config: TrainConfig, plan: Plan, folder: RunFolder, *, resume: bool) -> None:
    # One process adds up more than two replicas in another order than ranks do.
    if all(stage.degree <= 2 for stage in plan.stages):
        task = load_task(config.task, config.folder, config.train.seed)
        assert train_rank(config, task, plan, folder, resume=resume) is not None
        return
    config.save(folder.config)
    plan.save(folder.plan)
    launch(RANK_ENTRY, len(plan.used_devices), arguments=[str(folder), *["resume"] * resume])


if __name__ == "__main__":
    main(sys.argv[1:])
