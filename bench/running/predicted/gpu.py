"""All stages in one process on one GPU, a stream per stage: profiled, predicted, measured, and the error (target 10 %).

Operators are profiled on that GPU, in float32. A task is measured while the host waits for the GPU after each task, so
that it runs alone, as on a GPU of its own. The step is measured as it is trained: the median of 20 after 5. Its stages
share the GPU. To the simulator they are devices of a node with one core, of which each running task has an equal share.
A GPU does more than that, because one task's kernels fill the gaps of another's. So the target holds for tasks and for
memory, and the error of the step is printed beside them. Memory is the most in a step, less what was there before the
model. Predicted memory is the sum over stages and their workspaces.
"""

import gc
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

import graphpipe as gp
from bench.record import save
from bench.running.engines import adamw
from bench.tables import markdown
from graphpipe.cluster.device import Device, DeviceType, Link
from graphpipe.devices.registry import kind_of
from graphpipe.model.zoo import gpt, mmt
from graphpipe.model.zoo.zoo_model import ZooModel
from graphpipe.plans.device_memory import beside_stages
from graphpipe.plans.sharding import SampleRange
from graphpipe.profiler.effort import Effort
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.schedule import StageTask
from graphpipe.trace.compare import compare

TARGET = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and its cut into stages."""

    name: str
    model: ZooModel
    stages: tuple[tuple[str, ...], ...]
    """Operator patterns of each stage."""
    batch_size: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What was measured."""

    seconds: list[float]
    """Of every step."""
    trace: gp.Trace
    """Of the last step."""
    peak_bytes: float | None
    """The most memory in a step, with all that was there before. None on the host, whose memory others use too."""
    alone: dict[str, float]
    """Seconds of a step's forwards (F) and backwards (B), while the host waits for the device after each task."""


def cases(device: str, *, small: bool = False) -> Iterator[Case]:
    """Yield the cases, each built when it is asked for, so that a device holds one.

    The `small` ones take milliseconds on a CPU and serve as a smoke test.
    """
    chain = gpt.GptShape(layers=8, sequence=512, hidden=1024, heads=16, feed_forward=4096, vocabulary=8192)
    branches = mmt.MmtShape(layers=4, sequence=256, hidden=1024, heads=16, feed_forward=4096)
    sizes = {"batch_size": 8, "micro_batch": 2} if small else {"batch_size": 64, "micro_batch": 8}
    layers = gpt.SMALL.layers if small else chain.layers
    parts = [tuple(f"layers.{layer}.*" for layer in range(first, first + layers // 4)) for first in _quarters(layers)]
    embedding = () if small else ("embedding",)  # a small embedding is part of the first layer
    yield Case(
        name="gpt",
        model=gpt.build(gpt.SMALL if small else chain, device),
        stages=(embedding + parts[0], *parts[1:3], (*parts[3], "head.*")),
        **sizes,
    )
    yield Case(
        name="mmt",
        model=mmt.build(mmt.SMALL if small else branches, device),
        stages=(*((f"branch{branch}.*",) for branch in range(4)), ("head",)),
        **sizes,
    )


def shared_device(device: torch.device, stages: int, link: Link | None = None) -> gp.Cluster:
    """Return the cluster that represents the stages of one device: a node with one core, which they share.

    Hand-overs are copies in the device's own memory, beside the tasks.
    """
    name, memory = describe(device)
    kind = DeviceType(
        name=name,
        memory_bytes=memory / stages,
        peak_flops_per_second=1e12,  # not used, because every operator is profiled
        memory_bytes_per_second=1e12,
        launch_seconds=0.0,
        half_peak_flops=0.0,
        workspace_bytes=workspace_bytes(device),
    )
    link = link or Link(latency_seconds=0.0, bandwidth_bytes_per_second=copy_bandwidth(device))
    return gp.Cluster(
        name=f"one {name}",
        device_types=(kind,),
        devices=tuple(Device(name=f"stage{number}", type=name, node="here") for number in range(stages)),
        intra_node=link,
        inter_node=link,
        cores_per_node=1,
    )


def workspace_bytes(device: torch.device) -> float:
    """Return what libraries keep for a stream that has run a forward and a backward."""
    kind = kind_of(device)
    if kind.on_host:
        return 0.0
    with kind.new_stream(device).entered():
        factor = torch.ones(64, 64, device=device, requires_grad=True)
        gradient = torch.ones_like(factor)
        before = kind.held_bytes(device)
        (factor @ factor).backward(gradient)  # torch's threads for forwards and for backwards have a workspace each
        factor.grad = None
        return kind.held_bytes(device) - before


def describe(device: torch.device) -> tuple[str, float]:
    """Return the name and the memory of a device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), float(torch.cuda.get_device_properties(device).total_memory)
    return "cpu", 16e9


def copy_bandwidth(device: torch.device, count: int = 64 * 2**20) -> float:
    """Return the bytes per second of a copy within a device."""
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds: list[float] = []
    for _ in range(5):
        _settle(device)
        start = time.perf_counter()
        target.copy_(source)
        _settle(device)
        seconds.append(time.perf_counter() - start)
    return count / median(seconds)


def measure(
    case: Case,
    device: torch.device,
    *,
    before: float = 0.0,
    warmup: int = 5,
    steps: int = 20,
    effort: Effort | None = None,
) -> dict[str, Any]:
    """Return predicted and measured tasks, step and memory of a case, and the tasks that differ most in the step.

    Args:
        case: its model is on the device.
        device: where to run.
        before: bytes that the device held before it had the model.
        warmup: steps before the measured ones.
        steps: how many are measured.
        effort: of the profile.
    """
    cluster = shared_device(device, len(case.stages))
    graph = gp.capture(case.model.module, case.model.example_inputs)
    sizes = sorted({1, max(1, case.micro_batch // 2), case.micro_batch})
    examples = case.model.example_inputs
    costs = gp.profile(case.model.module, examples, cluster, graph=graph, batch_sizes=sizes, effort=effort)
    plan = gp.hand_plan(graph, costs, cluster, batch_size=case.batch_size, stages=_by_hand(case))
    assert plan.prediction is not None
    training = train(case, plan, device, warmup=warmup, steps=steps)
    measured_seconds, predicted = median(training.seconds), plan.prediction.step_seconds
    tasks, predicted_tasks = sum(training.alone.values()), sum(_seconds_alone(plan).values())
    peak = None if training.peak_bytes is None else training.peak_bytes - before
    predicted_peak = sum(plan.prediction.peak_bytes) + sum(each.workspaces for each in beside_stages(plan).values())
    found = compare(gp.simulate(plan), training.trace)
    return {
        "model": case.name,
        "device": describe(device)[0],
        "stages": len(plan.stages),
        "batch": case.batch_size,
        "micro_batch": case.micro_batch,
        "schedule": plan.schedule,
        "predicted_step_seconds": predicted,
        "measured_step_seconds": measured_seconds,
        "error": predicted / measured_seconds - 1.0,
        "predicted_task_seconds": predicted_tasks,
        "measured_task_seconds": tasks,
        "task_error": predicted_tasks / tasks - 1.0,
        "predicted_peak_bytes": predicted_peak,
        "measured_peak_bytes": peak,
        "memory_error": None if peak is None else predicted_peak / peak - 1.0,
        "differences": [
            {"stage": plan.stages[each.stage].name, "kind": each.kind, "total_seconds": each.total_seconds}
            for each in found.differences[:5]
        ],
    }


def train(case: Case, plan: gp.Plan, device: torch.device, *, warmup: int, steps: int) -> Training:
    """Train some steps, and return what was measured after the first `warmup` ones."""
    inputs, targets = case.model.batch(torch.Generator().manual_seed(0), case.batch_size)
    inputs, targets = {name: each.to(device) for name, each in inputs.items()}, targets.to(device)
    kind, seconds = kind_of(device), list[float]()
    options = gp.PipelineOptions(device=device, record=True)
    with gp.Pipeline(plan, case.model.module, case.model.loss_fn, adamw, options=options) as pipeline:
        for step in range(warmup + steps):
            if step == warmup and not kind.on_host:
                kind.reset_peak(device)
            _settle(device)
            start = time.perf_counter()
            pipeline.step(inputs, targets)
            _settle(device)
            seconds.append(time.perf_counter() - start)
        trace, peak = pipeline.trace(), None if kind.on_host else kind.peak_bytes(device)
        with _waiting_after_each_task(device) as alone:
            pipeline.step(inputs, targets)
    return Training(seconds=seconds[warmup:], trace=trace, peak_bytes=peak, alone=alone)


@contextmanager
def _waiting_after_each_task(device: torch.device) -> Generator[dict[str, float]]:
    # The dict gets the seconds of all tasks of a kind.
    ordinary, alone = StageReplicaRun.do, dict[str, float]()

    def do(run: StageReplicaRun, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        _settle(device)
        start = time.perf_counter()
        ordinary(run, task, rows, batch)
        _settle(device)
        alone[task.kind] = alone.get(task.kind, 0.0) + time.perf_counter() - start

    with patch.object(StageReplicaRun, "do", do):
        yield alone


def _seconds_alone(plan: gp.Plan) -> dict[str, float]:
    # The predicted seconds of all tasks of a kind, if each device were one of its own.
    alone = {"F": 0.0, "B": 0.0}
    for span in gp.simulate(replace(plan, cluster=replace(plan.cluster, cores_per_node=None))).spans:
        if (kind := str(span.kind)) in alone:
            alone[kind] += span.end_seconds - span.start_seconds
    return alone


def _by_hand(case: Case) -> list[gp.HandStage]:
    return [
        gp.HandStage(ops=ops, devices=(number,), micro_batch=case.micro_batch) for number, ops in enumerate(case.stages)
    ]


def _quarters(layers: int) -> Sequence[int]:
    return range(0, layers, layers // 4)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Run the benchmark on the first GPU, write JSON and table."""
    if not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return
    device = torch.device("cuda", 0)
    header = ["model", "stages", "tasks: predicted ms", "measured ms", "error"]
    header += ["step: predicted ms", "measured ms", "error", "memory: predicted GiB", "measured GiB", "error"]
    rows, lines = list[dict[str, Any]](), list[list[object]]()
    before = kind_of(device).held_bytes(device)
    for case in cases("cuda:0"):
        rows.append(row := measure(case, device, before=before))
        del case
        gc.collect()
        before = kind_of(device).held_bytes(device)  # also workspaces of the streams of that model
        line: list[object] = [row["model"], row["stages"]]
        for what, error in (("task", "task_error"), ("step", "error")):
            line += [f"{row[f'{kind}_{what}_seconds'] * 1e3:.1f}" for kind in ("predicted", "measured")]
            line.append(f"{row[error]:+.1%}")
        line += [f"{row[f'{kind}_peak_bytes'] / 2**30:.2f}" for kind in ("predicted", "measured")]
        lines.append([*line, f"{row['memory_error']:+.1%}"])
        print(*lines[-1], sep="\t", flush=True)
    name = describe(device)[0]
    markdown("gpu", f"One GPU: {name}", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    missed = [row["model"] for row in rows if max(abs(row["task_error"]), abs(row["memory_error"])) > TARGET]
    print(f"saved {save('gpu', rows, device=name, target=TARGET, missed=missed)}")
