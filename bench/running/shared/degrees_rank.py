"""One rank of the benchmark `shared-degrees`: `launch("bench.running.shared.degrees_rank:train", ...)`."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.running.alternate import alternate
from bench.running.engines import ours
from bench.running.shared.layers import Shape, batch, loss_fn, model
from graphpipe.plans import Plan


def train(job: str) -> None:
    """Train a model by several plans in turn."""
    case: dict[str, Any] = json.loads(Path(job).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    shape, plans = Shape(**case["shape"]), {name: Plan.load(file) for name, file in case["plans"].items()}
    tokens, targets = batch(shape, next(iter(plans.values())).batch_size)
    steps = {name: ours(plan, model(shape), loss_fn, {"input": tokens}, targets) for name, plan in plans.items()}
    losses = [step() for step in steps.values()]
    assert max(losses) - min(losses) < 1e-5 * abs(losses[0]), f"the plans compute different losses: {losses}"
    seconds = alternate(steps, warmup=case["warmup"], repeats=case["repeats"])
    Path(f"{job}.{dist.get_rank()}").write_text(json.dumps(seconds))
    dist.destroy_process_group()
