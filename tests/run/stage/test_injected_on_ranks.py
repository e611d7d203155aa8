"""Gradients that a backward adds by itself were not looked at where replicas shard their weights."""

from pathlib import Path

import pytest
from run_injected import train
from run_ranks import run_ranks, values


@pytest.mark.timeout(120)
@pytest.mark.parametrize("engine", ["fsdp2", "ddp"])
def test_they_are_refused_in_the_first_step(engine: str, tmp_path: Path) -> None:
    for refused, trained in values(run_ranks(train, 2, tmp_path, engine)):
        assert "gets a gradient although the loss gives none: a backward written by hand adds it" in refused
        assert trained == "trained True"
