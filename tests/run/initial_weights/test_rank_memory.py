"""A rank holds the weights, gradients and optimizer state of its own stages, also while it starts and saves."""

import sys
from pathlib import Path

import pytest
from run_ranks import run_ranks, values
from run_share import held


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_holds_its_share(tmp_path: Path) -> None:
    """With data, a rank held the whole model: three times its share on four ranks."""
    for found in values(run_ranks(held, 2, tmp_path / "ranks", 2, str(tmp_path / "checkpoints"))):
        assert 0.9 < found["steady"] <= 1.1
        assert found["start"] <= 0.5
        assert found["saving"] <= 1.3
        assert found["loading"] <= 1.3
