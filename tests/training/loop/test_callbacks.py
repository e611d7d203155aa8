"""Callbacks by name: those of the task come first, and a package adds others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import graphpipe as gp
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.loop.callbacks import Callbacks
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.callback import CALLBACKS, Callback, CallbackKind, TrainingView, register_callback
from graphpipe.training.task.task import load_task

CALLED: list[str] = []


class Named(Callback):
    """Notes its name, and draws random numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def checkpoint(self, training: TrainingView) -> None:
        """Note what it sees."""
        torch.rand(5)
        CALLED.append(f"{self.name} on rank {training.rank} of {training.ranks}, step {training.step}")


def test_a_registered_callback_is_called_after_those_of_the_task(config: Path) -> None:
    settings = read_config(config, ["train.callbacks=[mine]"])
    task = replace(load_task("tiny.py:task", ".", 0), callbacks=[Named("own")])
    world = SimpleNamespace(rank=1, size=2, exchange=lambda value: ["", value])
    pipeline: Any = SimpleNamespace(world=world, steps=7)
    before = torch.get_rng_state()
    with CALLBACKS.restored():
        register_callback(CallbackKind(name="mine", make=lambda: Named("mine")))
        found = Callbacks.of(settings, task, cast("gp.Pipeline", pipeline), RunFolder(Path("run")), 9)
    found.call(lambda callback, training: callback.checkpoint(training))
    assert CALLED == ["own on rank 1 of 2, step 7", "mine on rank 1 of 2, step 7"]
    assert torch.equal(torch.get_rng_state(), before)
    assert found.why_stop() == ""
    found.training.stop("enough")
    assert found.why_stop() == "enough"
    with pytest.raises(gp.InvalidInput, match=r"Task: callbacks has a str\. Write a subclass of gp\.Callback"):
        gp.Task(
            module=task.model,
            example_inputs=task.example_inputs,
            loss_fn=task.loss_fn,
            epoch=task.epoch,
            callbacks=cast("Any", ["mine"]),
        )
