"""One rank of the benchmark of loads: `launch("bench.running.predicted.loads_rank:train", ...)`."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from bench.running.engines import adamw
from bench.running.predicted.album import album, batch, tire
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions


def train(job: str) -> None:
    """Take a step for each list of image counts, and write what the steps took after the first."""
    read = json.loads(Path(job).read_text())
    counts: list[list[float]] = read["counts"]
    torch.set_num_threads(1)
    plan = Plan.load(Path(job).with_name("plan.json"))
    model = album()
    taken: list[float] = []
    options = PipelineOptions(balance="counts" if read["balance"] else None)
    with Pipeline(plan, model, nn.MSELoss(), adamw, options=options) as pipeline:
        tire(model)
        for each in counts:
            inputs, targets = batch(each)
            dist.barrier()
            began = time.perf_counter()
            pipeline.step(inputs, targets)
            taken.append(time.perf_counter() - began)
        rank = pipeline.world.rank
    Path(f"{job}.rank-{rank}").write_text(json.dumps(taken[1:]))
