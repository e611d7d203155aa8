"""One rank of the benchmark `shared`: `launch("bench.running.shared.shared_rank:train", ...)`."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from bench.running.alternate import alternate
from bench.running.engines import ours, theirs
from bench.running.shared.layers import Shape, batch, loss_fn, model
from graphpipe.plans import Plan


def train(job: str) -> None:
    """Train a model in two stages that two ranks share each, with our runtime and with torch's."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    plan, shape, rank = Plan.load(case["plan"]), Shape(**case["shape"]), dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "tensor"))
    tokens, targets = batch(shape, plan.batch_size)
    parts = [*model(shape).children()]
    half = 1 + shape.layers  # the embedding, and two parts of each of the first half of the layers
    stage = nn.Sequential(*(parts[:half] if rank < dist.get_world_size() // 2 else parts[half:]))
    parallelize_module(stage, mesh["tensor"], dict(_styles(stage)))
    steps = {
        "ours": ours(plan, model(shape), loss_fn, {"input": tokens}, targets),
        "theirs": theirs(
            stage,
            loss_fn,
            plan.schedule,
            plan.batch_size // plan.stages[0].micro_batch,
            [tokens],
            targets,
            group=mesh["stages"].get_group(),
        ),
    }
    losses: Mapping[str, float | None] = {name: step() for name, step in steps.items()}
    if losses["theirs"] is not None:
        first, other = losses["ours"] or 0.0, losses["theirs"]
        assert abs(first - other) < 1e-5 * abs(first), f"the engines compute different losses: {losses}"
    seconds = alternate(steps, warmup=case["warmup"], repeats=case["repeats"])
    Path(f"{job}.{rank}").write_text(json.dumps(seconds))
    dist.destroy_process_group()


def _styles(stage: nn.Module) -> Iterator[tuple[str, ParallelStyle]]:
    # As torchtitan shares Llama, without sequence parallelism: logits are whole, as our loss reads them.
    for name, part in stage.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
            yield name, ColwiseParallel()
        elif name.endswith(("o_proj", "down_proj")):
            yield name, RowwiseParallel()
        elif isinstance(part, nn.Embedding):
            yield name, RowwiseParallel(input_layouts=Replicate())
        elif isinstance(part, nn.Linear):
            yield name, ColwiseParallel(output_layouts=Replicate())
