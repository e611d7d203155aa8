"""One rank of the runtime benchmarks: `launch("bench.running.runtime_rank:chain", ...)`."""

import copy
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.running import naps
from bench.running.alternate import Step, alternate
from bench.running.engines import ours, plain, theirs, theirs_in_a_v
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan


def chain(job: str) -> None:
    """Train gpt with our runtime and with torch.distributed.pipelining, cut into the same stages."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    rank = _join(case)
    plan = Plan.load(case["plan"])
    model = _zoo(case["model"])
    inputs, targets = model.batch(torch.Generator().manual_seed(0), plan.batch_size)
    twin = copy.deepcopy(model.module)
    count = plan.batch_size // plan.stages[0].micro_batch
    steps = {
        "ours": ours(plan, model.module, model.loss_fn, inputs, targets),
        "theirs": theirs(
            _gpt_stage(twin, rank, case["ranks"]), model.loss_fn, plan.schedule, count, [*inputs.values()], targets
        ),
    }
    _measure(case, job, rank, steps)
    dist.destroy_process_group()


def in_a_v(job: str) -> None:
    """Train gpt with our runtime and with torch's DualPipeV, cut into the same stages, two on each rank."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    rank, ranks = _join(case), case["ranks"]
    plan = Plan.load(case["plan"])
    model = _zoo(case["model"])
    inputs, targets = model.batch(torch.Generator().manual_seed(0), plan.batch_size)
    twin = copy.deepcopy(model.module)
    count = plan.batch_size // plan.stages[0].micro_batch
    modules = [_gpt_stage(twin, number, 2 * ranks) for number in (rank, 2 * ranks - 1 - rank)]
    steps = {
        "ours": ours(plan, model.module, model.loss_fn, inputs, targets),
        "theirs": theirs_in_a_v(modules, model.loss_fn, count, [*inputs.values()], targets),
    }
    _measure(case, job, rank, steps, knows_loss=0)
    dist.destroy_process_group()


def branches(job: str) -> None:
    """Train sleeping layers, as two branches with our runtime and as a chain with torch.distributed.pipelining."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    rank = _join(case)
    plan = Plan.load(case["plan"])
    model, name = naps.two_branches(), [*naps.LAYERS][rank]
    inputs, targets = naps.batch(plan.batch_size)
    twin = naps.Hop(name, copy.deepcopy(model.get_submodule(name)))
    loss, count = nn.functional.mse_loss, plan.batch_size // plan.stages[0].micro_batch
    steps = {
        "ours": ours(plan, model, loss, inputs, targets),
        "theirs": theirs(twin, loss, plan.schedule, count, [*inputs.values()], targets),
    }
    naps.tire(model)
    naps.tire(twin)
    _measure(case, job, rank, steps)
    dist.destroy_process_group()


def alone(job: str) -> None:
    """Train a model of the zoo on one rank, with our runtime and with plain gradient accumulation."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    torch.set_num_threads(1)
    plan = Plan.load(case["plan"])
    model = _zoo(case["model"])
    inputs, targets = model.batch(torch.Generator().manual_seed(0), plan.batch_size)
    twin, third = copy.deepcopy(model.module), copy.deepcopy(model.module)
    count = plan.batch_size // plan.stages[0].micro_batch
    steps = {
        "ours": ours(plan, model.module, model.loss_fn, inputs, targets),
        "unchecked": ours(plan, third, model.loss_fn, inputs, targets, check_finite=False),
        "plain": plain(twin, model.loss_fn, count, inputs, targets),
    }
    _measure(case, job, 0, steps, clock=time.thread_time)


def _join(case: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    return dist.get_rank()


def _zoo(name: str):
    torch.manual_seed(0)
    return zoo_model(name)


def _gpt_stage(model: nn.Module, rank: int, ranks: int) -> nn.Sequential:
    # The same modules as in the plan: layers in equal parts, the embedding with the first, the head with the last.
    layers = [*model.get_submodule("layers").children()]
    each = len(layers) // ranks
    parts = layers[rank * each : (rank + 1) * each]
    first = [model.get_submodule("embedding")] if rank == 0 else []
    last = [model.get_submodule("head")] if rank == ranks - 1 else []
    return nn.Sequential(*first, *parts, *last)


def _measure(
    case: dict[str, Any],
    job: str,
    rank: int,
    steps: dict[str, Step],
    clock: Callable[[], float] = time.perf_counter,
    knows_loss: int | None = None,
) -> None:
    # Every engine trains a copy of the same weights, so that they find the same loss; it is the last rank's of a chain.
    first, *others = (step() for step in steps.values())
    if rank == (case["ranks"] - 1 if knows_loss is None else knows_loss):
        for other in others:
            assert abs(first - other) < 1e-5 * abs(first), f"the engines compute different losses: {first}, {other}"
    seconds = alternate(steps, warmup=case["warmup"], repeats=case["repeats"], clock=clock)
    Path(f"{job}.{rank}").write_text(json.dumps(seconds))
