"""Data-parallel engines: each gives the gradients of the unpartitioned model, and trains it alike."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_engines import train_all, train_alone
from run_ranks import run_ranks, values

RANKS = {"replicas": 4, "both": 4, "four": 4, "overlap": 3}


def assert_alike(found: dict[str, Any], wanted: dict[str, Any], *, owned: bool = True) -> None:
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
    assert found["evaluation"] == pytest.approx(wanted["evaluation"], rel=1e-5)
    for part in ("gradients", "clipped", "state"):
        names = found[part].keys() if part != "state" and owned else wanted[part].keys()
        for name in names:
            torch.testing.assert_close(
                found[part][name], wanted[part][name], rtol=1e-5, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}"
            )


@pytest.mark.parametrize("cut", RANKS)
def test_every_engine_trains_as_the_unpartitioned_model(cut: str, tmp_path: Path) -> None:
    wanted = train_alone()
    outcomes = values(run_ranks(train_all, RANKS[cut], tmp_path, cut, ["1f1b", "gpipe"], {}, seconds=100))
    for label in outcomes[0]:
        seen: set[str] = set()
        for outcome in outcomes:
            assert_alike(outcome[label], wanted)
            seen |= outcome[label]["gradients"].keys()
        assert seen == wanted["gradients"].keys(), label
