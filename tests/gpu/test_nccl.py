"""Ranks on GPUs with NCCL train as one process on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import run_on_gpus
import torch
from gpus import NEEDS_A_GPU
from run_models import STAGES
from run_ranks import run_ranks, values
from run_scenarios import train


@NEEDS_A_GPU
@pytest.mark.parametrize(
    ("cut", "options"),
    [
        ("shared", {"schedule": "gpipe"}),
        ("four", {"record": True}),
        ("replicas", {"clip_norm": 0.1}),
        ("replicas", {"engine": "ddp"}),
        ("replicas", {"engine": "fsdp2"}),
        ("mixed", {}),
    ],
)
def test_ranks_with_nccl_train_as_one_process_on_the_cpu(cut: str, options: dict[str, Any], tmp_path: Path) -> None:
    size = 1 + max(device for _, devices, _ in STAGES[cut] for device in devices)
    single = train(cut, 2, {name: value for name, value in options.items() if name != "engine"} | {"device": "cpu"})
    for rank in values(run_ranks(run_on_gpus.train, size, tmp_path, cut, options, seconds=100.0)):
        assert rank["losses"] == pytest.approx(single["losses"], rel=1e-4)
        for name, gradient in rank["gradients"].items():
            torch.testing.assert_close(gradient, single["gradients"][name], rtol=1e-4, atol=1e-6)
