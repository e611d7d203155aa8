"""All stages in one process: a GPU has a stream per device of the plan, a CPU runs the same code without streams."""

import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_shared
import torch
from gpus import DEVICES, GPU, NEEDS_A_GPU
from run_chain import INTERLEAVED, chain, chain_batch, chain_pipeline
from run_models import STAGES, cross_entropy, fan_batch
from run_scenarios import build
from torch import Tensor, nn

import graphpipe as gp
from bench.running.predicted import gpu
from graphpipe.devices.cuda import Cuda, CudaClock, CudaStream
from graphpipe.profiler.effort import Effort
from graphpipe.run import Pipeline

CUDA = Cuda()


def on_devices(cases: Iterable[str], few: Collection[str]) -> list[Any]:
    """Return every case on a GPU, and a few on the CPU, because other tests run all cases there."""
    return [*((case, "cpu") for case in few), *(pytest.param(case, GPU, marks=NEEDS_A_GPU) for case in cases)]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)


def assert_same_step(pipeline: Pipeline, twin: nn.Module, inputs: dict[str, Tensor], targets: Tensor) -> None:
    """Assert that loss and gradients of a step equal those of the unpartitioned model on the CPU."""
    loss = cross_entropy(twin(**inputs), targets)
    loss.backward()
    assert pipeline.step(inputs, targets) == pytest.approx(loss.item(), rel=1e-5)
    found = pipeline.gradients()
    for name, parameter in twin.named_parameters():
        close(found[name], parameter.grad)


@pytest.mark.parametrize(("cut", "device"), on_devices(STAGES, ["mixed", "shared"]))
def test_gradients_equal_those_of_the_unpartitioned_model(cut: str, device: str) -> None:
    pipeline, _ = build(cut, device=device)
    _, twin = build(cut, device="cpu")
    assert_same_step(pipeline, twin, *fan_batch())


@pytest.mark.parametrize("device", DEVICES)
def test_training_equals_training_on_the_cpu(device: str) -> None:
    ours, theirs = build("mixed", clip_norm=0.1, device=device)[0], build("mixed", clip_norm=0.1, device="cpu")[0]
    for step in range(4):
        batch = fan_batch(seed=step)
        assert ours.step(*batch) == pytest.approx(theirs.step(*batch), rel=1e-4)
    assert ours.evaluate(*fan_batch(7))[0] == pytest.approx(theirs.evaluate(*fan_batch(7))[0], rel=1e-4)


@pytest.mark.parametrize(("schedule", "device"), on_devices(["1f1b", "zb-h1"], ["zb-h1"]))
def test_several_stages_on_a_device_and_split_backwards(schedule: str, device: str) -> None:
    pipeline, _ = chain_pipeline([(names, on, 8) for names, on, _ in INTERLEAVED], schedule, dropout=0.0, device=device)
    assert_same_step(pipeline, chain(), *chain_batch())


@pytest.mark.parametrize(("cut", "device"), on_devices(run_shared.CUTS, ["beside"]))
def test_parameters_that_stages_share(cut: str, device: str) -> None:
    (ours, model), (theirs, twin) = run_shared.build(cut, device=device), run_shared.build(cut, device="cpu")
    for seed in range(2):
        assert ours.step(*run_shared.batch(seed)) == pytest.approx(theirs.step(*run_shared.batch(seed)), rel=1e-4)
    for pipeline in (ours, theirs):
        pipeline.sync_model()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor.cpu(), twin.state_dict()[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_model_is_profiled_planned_predicted_and_measured(device: str) -> None:
    for case in [*gpu.cases(device, small=True)][1 if device == "cpu" else 0 :]:
        row = gpu.measure(case, torch.device(device), warmup=1, steps=3, effort=Effort(repeats=1, most=1))
        assert row["stages"] == len(case.stages)
        assert 0 < row["predicted_step_seconds"] < 10
        assert 0 < row["measured_task_seconds"] < 10
        assert row["error"] == row["predicted_step_seconds"] / row["measured_step_seconds"] - 1
        assert row["predicted_peak_bytes"] > 0
        assert {each["kind"] for each in row["differences"]} <= {"F", "B", "optimizer", "reduce"}
        assert (row["memory_error"] is None) == (device == "cpu")


def test_stages_of_one_device_are_predicted_to_share_it() -> None:
    _, case = gpu.cases("cpu", small=True)
    graph = gp.capture(case.model.module, case.model.example_inputs)
    shared = gpu.shared_device(torch.device("cpu"), 5)
    costs = gp.estimate(graph, shared)
    stages = [gp.HandStage(ops=ops, devices=(at,), micro_batch=2) for at, ops in enumerate(case.stages)]
    sharing = gp.hand_plan(graph, costs, shared, batch_size=8, stages=stages)
    apart = gp.hand_plan(graph, costs, replace(shared, cores_per_node=None), batch_size=8, stages=stages)
    tasks = [span for span in gp.simulate(apart).spans if span.kind in ("F", "B")]
    work = sum(task.end_seconds - task.start_seconds for task in tasks)
    assert sharing.prediction is not None
    assert apart.prediction is not None
    assert sharing.prediction.step_seconds >= work > apart.prediction.step_seconds


@NEEDS_A_GPU
def test_every_device_has_a_stream_and_spans_are_timed_by_events() -> None:
    pipeline, _ = build("four", record=True, device="cuda:0")
    pipeline.step(*fan_batch())
    streams = pipeline._worker.streams
    assert len({id(stream) for stream in streams.devices.values()}) == 4
    assert all(
        isinstance(stream, CudaStream) for stream in [streams.main, *streams.devices.values(), *streams.edges.values()]
    )
    assert isinstance(pipeline._worker.recorder.clock, CudaClock)
    trace = pipeline.trace()
    assert all(0 <= span.start_seconds <= span.end_seconds <= trace.step_seconds for span in trace.spans)


@NEEDS_A_GPU
@pytest.mark.parametrize("cut", ["four", "mixed", "shared"])
def test_cudas_sanitizer_finds_no_race_between_streams(cut: str) -> None:
    """The sanitizer of torch (TORCH_CUDA_SANITIZER) checks every kernel and event of torch."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import run_on_gpus; run_on_gpus.step_under_sanitizer({cut!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TORCH_CUDA_SANITIZER": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@NEEDS_A_GPU
@pytest.mark.timeout(600)
def test_predicted_tasks_and_memory_are_within_a_tenth_of_the_measured_ones() -> None:
    device = torch.device("cuda", 0)
    for case in gpu.cases("cuda:0"):
        before = CUDA.held_bytes(device) - sum(each.nbytes for each in case.model.module.parameters())
        row = gpu.measure(case, device, before=before)
        assert abs(row["task_error"]) <= gpu.TARGET, row
        assert abs(row["memory_error"]) <= gpu.TARGET, row
