"""A whole training from Python: profile, plan, predict, train, evaluate and save."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from graphpipe.plans import Plan
from graphpipe.run.device.random_state import RandomState
from graphpipe.torchrun import under_torchrun
from graphpipe.training.config.from_toml import resolve_config
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.run_folder.finished_run import FinishedRun
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.train_locally import train_locally
from graphpipe.training.train_under_torchrun import train_under_torchrun


def print_to_stderr(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def train(
    config: str | Path | TrainConfig,
    *,
    overrides: Sequence[str] = (),
    plan: Plan | str | Path | None = None,
    resume: str | Path | None = None,
    tell: Callable[[str], None] | None = print_to_stderr,
    on_plan: Callable[[Plan], None] | None = None,
) -> FinishedRun:
    """Train as `graphpipe train` does, and return when the training has ended.

    The ranks are new processes of this machine, one per device of the plan. They call the task's function themselves,
    so this works from a notebook and from a script without `if __name__ == "__main__"`. In a process that torchrun has
    started, this process is one of the ranks, and every rank must call this function.

        run = gp.train("examples/digits.toml", overrides=["train.steps=50"])
        print(run.result.loss_last, run.folder.weights)

    Args:
        config: a TOML file, which variables such as GRAPHPIPE__TRAIN__STEPS change, or a configuration.
        overrides: changed settings, such as `train.steps=50` or `run.elastic=true`. They are stronger than everything
            else.
        plan: a plan for this model, or a file of one, instead of making one.
        resume: the folder of a run to continue from its last checkpoint.
        tell: called with each line about the progress before and between the ranks' own output. None: no lines.
        on_plan: called with each plan before it runs: one, or several in an elastic run.

    Returns:
        The run's folder, its last plan and its result.

    Raises:
        InvalidInput: the configuration, the task, the plan or the run to resume cannot be used.
        Infeasible: no plan fits in memory.
        CheckpointCorrupt: every checkpoint of the run to resume is damaged.
        RankFailed: a rank failed. The message says which one, where and why. Under torchrun each rank raises its own
            error instead.
        KeyboardInterrupt: the training was interrupted.
    """
    resolved = resolve_config(config, overrides)
    begin = train_under_torchrun if under_torchrun() else train_locally
    random = RandomState.now()
    try:
        return begin(
            resolved,
            plan=plan or None,
            resume=RunFolder(Path(resume)) if resume else None,
            tell=tell or _ignore,
            on_plan=on_plan or _ignore,
        )
    finally:
        random.restore()  # The task's initial weights were drawn with its own seed.


def _ignore(_: object) -> None:
    pass
