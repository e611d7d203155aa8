"""Whole trainings on GPUs, and what they use: the command line, faults, precisions, offloading and checkpoints."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import run_on_gpus
import torch
from gpus import DEVICES, GPU, NEEDS_A_GPU, NEEDS_TWO
from run_chain import INTERLEAVED, chain_batch, chain_pipeline
from run_models import cross_entropy, fan_batch
from run_precision import build as build_in_precision
from run_ranks import run_ranks, values
from run_scenarios import build, train

import graphpipe as gp
from graphpipe.cluster import Cluster
from graphpipe.devices.cuda import Cuda
from graphpipe.training.config.settings import TrainSettings
from graphpipe.training.loop.evaluate_task import evaluate_task

CUDA = Cuda()
ROOT = Path(__file__).parents[2]
CLUSTER = """
intra_node = { latency = "10 us", bandwidth = "20 GB/s" }
device_types.gpu = { memory = "8 GB", peak = "10 TFLOP/s", memory_bandwidth = "500 GB/s" }
nodes = [{ name = "here", devices = { gpu = 2 } }]
"""


def graphpipe(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the command on a cluster of two GPUs, and return what it did and its seconds."""
    (folder / "gpus.toml").write_text(CLUSTER)
    start = time.monotonic()
    command = [sys.executable, "-m", "graphpipe", *words]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    return done, time.monotonic() - start


def training(folder: Path) -> list[str]:
    """Return the words that train the digits on two GPUs."""
    digits = str(ROOT / "examples" / "digits.toml")
    return ["train", digits, f"cluster={folder / 'gpus.toml'}", f"run.directory={folder / 'runs'}"]


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the share of samples whose largest output is the wanted one."""
    return (outputs.argmax(1) == targets).float().mean().item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"recompute": {1: "full", 2: ("c",)}},
        {"offload": {0: ("a",), 1: ("b",)}},
        {"offload": {1: ("b",)}, "offload_to": {1: (0,)}},
    ],
)
def test_recomputation_and_offloading_train_as_keeping_everything_on_the_cpu(
    options: dict[str, Any], device: str
) -> None:
    ours, _ = chain_pipeline(INTERLEAVED, dropout=0.0, device=device, **options)
    theirs, _ = chain_pipeline(INTERLEAVED, dropout=0.0, device="cpu")
    for seed in range(2):
        assert ours.step(*chain_batch(seed=seed)) == pytest.approx(theirs.step(*chain_batch(seed=seed)), rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_nearly_as_on_the_cpu(precision: str, device: str) -> None:
    ours, _ = build_in_precision("whole", precision, "plain", device=device)
    theirs, _ = build_in_precision("whole", precision, "plain", device="cpu")
    for seed in range(2):
        assert ours.step(*fan_batch(seed=seed)) == pytest.approx(theirs.step(*fan_batch(seed=seed)), rel=2e-2)
    assert ours.loss_scale == theirs.loss_scale


@pytest.mark.parametrize("device", DEVICES)
def test_a_metric_can_compare_outputs_with_targets(device: str) -> None:
    """Outputs stayed on the GPU, held-out targets on the host: the first training on a GPU ended when it evaluated."""
    pipeline, model = build("whole", device=device)
    _, twin = build("whole", device="cpu")
    inputs, targets = fan_batch()
    task = gp.Task(
        module=model,
        example_inputs=inputs,
        loss_fn=cross_entropy,
        epoch=lambda *_: [(inputs, targets)],
        held_out=(inputs, targets),
        accuracy=accuracy,
    )
    found = evaluate_task(task, pipeline, TrainSettings(batch_size=len(targets), steps=1))
    assert found.accuracy == accuracy(twin(**inputs), targets)


@NEEDS_A_GPU
@pytest.mark.parametrize("options", [{}, {"engine": "ddp"}])
def test_a_group_that_was_bound_to_a_gpu_trains_alike(options: dict[str, Any], tmp_path: Path) -> None:
    """With `device_id`, all messages in the group of all ranks share one communicator."""
    alone = train("pair", 2, {"device": "cpu"})
    for rank in values(run_ranks(run_on_gpus.train_bound, 2, tmp_path, "pair", options, str(tmp_path / "nccl"))):
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-4)


@NEEDS_TWO
def test_a_training_on_gpus_is_profiled_on_them_and_saves_checkpoints(tmp_path: Path) -> None:
    done, _ = graphpipe(tmp_path, *training(tmp_path), "train.steps=4", "train.checkpoint_every=2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert any(tmp_path.glob("runs/*/checkpoints/*"))


@NEEDS_TWO
@pytest.mark.parametrize("kind", ["kill", "raise", "stop"])
def test_a_rank_with_a_fault_is_named_within_the_time_limit(kind: str, tmp_path: Path) -> None:
    fault = ["--fault", f"{kind}@rank1:step4:phase=forward"]
    done, seconds = graphpipe(tmp_path, *training(tmp_path), "train.steps=20", "run.timeout_seconds=30", *fault)
    assert done.returncode != 0
    assert "rank 1" in done.stderr
    assert "InvalidInput" not in done.stderr  # such as two ranks that compute on one GPU
    assert "Traceback" not in done.stderr
    assert seconds < 120


@NEEDS_A_GPU
def test_the_profile_verb_measures_the_gpu(tmp_path: Path) -> None:
    done, _ = graphpipe(tmp_path, "profile", "two-tower-small", "--cluster", "gpus.toml", "-o", "costs.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"gpu"' in (tmp_path / "costs.json").read_text()


@NEEDS_TWO
def test_links_between_gpus_are_measured(tmp_path: Path) -> None:
    done, _ = graphpipe(tmp_path, "profile", "--links", "--cluster", "gpus.toml", "-o", "measured.toml")
    assert done.returncode == 0, done.stderr[-3000:]
    assert Cluster.load(tmp_path / "measured.toml").intra_node.bandwidth_bytes_per_second > 1e9


@NEEDS_A_GPU
def test_what_is_offloaded_leaves_the_gpu() -> None:
    """Blocks that another stream uses are active until it is done, also if the host has freed them."""
    peaks: list[float] = []
    for offload in ({}, {0: ("a",), 1: ("b",)}):
        pipeline, _ = chain_pipeline(INTERLEAVED, dropout=0.0, device=GPU, offload=offload)
        pipeline.step(*chain_batch())
        CUDA.synchronize()
        CUDA.reset_peak(torch.device(GPU))
        before = CUDA.held_bytes(torch.device(GPU))  # also what torch keeps for cuBLAS, for each stream
        pipeline.step(*chain_batch())
        peaks.append(CUDA.peak_bytes(torch.device(GPU)) - before)
    assert peaks[1] <= peaks[0]


@NEEDS_A_GPU
@pytest.mark.timeout(1200)
def test_the_first_fifteen_minutes_are_as_expected(tmp_path: Path) -> None:
    done, _ = graphpipe(tmp_path, "doctor", "--gpu", "-o", "minutes")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "minutes" / "first-minutes.json").is_file()
