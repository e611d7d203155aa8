"""The runtime keeps the rules of NCCL, and ends soon where NCCL would wait: by a backend that does as NCCL does."""

from pathlib import Path
from typing import Any

import pytest
import run_emulated
import torch
from run_models import STAGES
from run_ranks import run_ranks, values
from run_scenarios import train

TIMEOUTS = {"raise": 15.0, "kill": 15.0, "hang": 4.0}
"""The time limits. What ends because of a lost peer ends before them, on a busy machine too."""
MOST_SECONDS = {"raise": 15.0, "kill": 15.0, "hang": 30.0}
"""NCCL's watchdog would end the processes half a minute after the limit."""


def ranks_of(cut: str) -> int:
    return 1 + max(device for _, devices, _ in STAGES[cut] for device in devices)


@pytest.mark.parametrize(
    ("cut", "options", "eager"),
    [
        ("shared", {"schedule": "gpipe"}, False),
        ("mixed", {"clip_norm": 0.1, "norm": True}, True),
        ("pair", {"engine": "ddp"}, False),
        pytest.param("replicas", {"engine": "fsdp2", "record": True}, True, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_as_one_process_under_nccls_rules(
    cut: str, options: dict[str, Any], eager: bool, tmp_path: Path
) -> None:
    alone = train(cut, 2, {name: value for name, value in options.items() if name != "engine"})
    for rank in values(run_ranks(run_emulated.train, ranks_of(cut), tmp_path, cut, options, eager, 1)):
        assert not rank["broken"]
        assert rank["operations"] > 10
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        for name, gradient in rank["gradients"].items():
            torch.testing.assert_close(gradient, alone["gradients"][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("how", "error"),
    [("raise", "PeerLost"), pytest.param("kill", "PeerLost", marks=pytest.mark.slow), ("hang", "PeerStalled")],
)
def test_a_rank_that_fails_is_named_and_the_others_end_soon(how: str, error: str, tmp_path: Path) -> None:
    """torch closed NCCL's groups only when their kernels were done, so an error on one rank ended the others after the
    time limit, by SIGABRT and without a word."""
    last = ranks_of("four") - 1
    found = run_ranks(run_emulated.fail, last + 1, tmp_path, "four", how, TIMEOUTS[how], seconds=90.0)
    assert all(rank.exitcode == 0 for rank in found[:last])
    assert any(f"{error}: rank {last} d" in rank.error for rank in found[:last]), [rank.error for rank in found]
    assert all(rank.error.startswith("Peer") for rank in found[:last])
    assert all(rank.seconds < MOST_SECONDS[how] for rank in found[:last])
    assert how != "raise" or found[last].error == "KeyError: 'labels'"
