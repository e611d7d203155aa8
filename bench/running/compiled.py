"""Compiled stages against eager ones: processor time of a step, gradients, and backwards that are split.

Everything runs in one process with one thread. The first two steps of each are not counted: they compile.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.model.zoo.registry import zoo_model

NAME = "compiled"
BATCH, MICRO_BATCH, STAGES, WARM_UP = 16, 8, 2, 2
ZOO = ("gpt-small", "two-tower-small", "mmt-small", "dlrm-small", "candle-uno-small", "unet-small")
"""Not densenet-small, whose compiled gradients are wrong with torch 2.13, so that it is refused."""


class Pointwise(nn.Module):
    """A layer that is mostly elementwise: a gate, a norm of its own, and activations without a kernel of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(64, 64)
        self.scale, self.shift = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.scale + self.shift
        gate = normed * torch.sigmoid(1.702 * normed) + 0.1 * torch.tanh(normed) * normed.abs().sqrt()
        return x + self.mix(gate) * torch.exp(-gate.square())


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its loss and a mini-batch."""

    name: str
    module: nn.Module
    loss_fn: Any
    inputs: Any
    targets: Any


def cases() -> list[Case]:
    """Return the pointwise-heavy model, and the small models of the zoo."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(Pointwise() for _ in range(8)))
    values = torch.randn(BATCH, 128, 64)
    found = [Case("pointwise layers", layers, nn.functional.mse_loss, values, values.flip(1))]
    for name in ZOO:
        zoo = zoo_model(name)
        inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
        found.append(Case(name, zoo.module, zoo.loss_fn, inputs, targets))
    return found


def trained(case: Case, plan: gp.Plan, count: int, *, compiled: bool) -> dict[str, Any]:
    """Train without changing a weight; return processor seconds, gradients and how backwards ran."""
    options = gp.PipelineOptions(compile=compiled, alone=True)
    optimizer = partial(torch.optim.SGD, lr=0.0)
    with gp.Pipeline(plan, case.module, case.loss_fn, optimizer, options=options) as pipeline:
        seconds: list[float] = []
        for _ in range(WARM_UP + count):
            start = time.process_time()
            pipeline.step(case.inputs, case.targets)
            seconds.append(time.process_time() - start)
        return {
            "seconds": median(seconds[WARM_UP:]),
            "first": sum(seconds[:WARM_UP]),
            "gradients": {name: each.clone() for name, each in pipeline.gradients().items() if each is not None},
            "whole": sorted(name for name, how in pipeline.backwards().items() if how != "split"),
            "compilations": sum(pipeline.compilations.values()),
        }


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference of two sets of gradients, relative to the largest gradient of all."""
    assert one.keys() == other.keys()
    largest = max(each.abs().max().item() for each in one.values())
    return max((each - other[name]).abs().max().item() for name, each in one.items()) / largest


def measure(case: Case, schedule: str, count: int) -> dict[str, Any]:
    """Return the row of a model under a schedule."""
    graph, cluster = gp.capture(case.module, case.inputs), gp.Cluster.preset(f"local:{STAGES}")
    costs = gp.estimate(graph, cluster)
    plan = gp.plan(graph, costs, cluster, batch_size=BATCH, planner="gpipe", schedule=schedule)
    eager, compiled = (trained(case, plan, count, compiled=each) for each in (False, True))
    assert compiled["compilations"], "nothing was compiled"
    return {
        "model": case.name,
        "schedule": schedule,
        "eager_seconds": eager["seconds"],
        "compiled_seconds": compiled["seconds"],
        "compiling_seconds": compiled["first"] - eager["first"],
        "distance": distance(eager["gradients"], compiled["gradients"]),
        "whole_eager": eager["whole"],
        "whole_compiled": compiled["whole"],
        "compilations": compiled["compilations"],
    }


def main(*, steps: int = 10) -> None:
    """Measure, print, and write `bench/results/compiled.json` and `.md`.

    Args:
        steps: that are measured of each.
    """
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for case in cases():
        for schedule in ("1f1b", "zb-h1"):
            rows.append(measure(case, schedule, steps))
            print(rows[-1], flush=True)
    save(NAME, rows, batch=BATCH, steps=steps)
    lines = [
        [
            row["model"],
            row["schedule"],
            f"{1e3 * row['eager_seconds']:.1f}",
            f"{1e3 * row['compiled_seconds']:.1f}",
            f"{row['compiled_seconds'] / row['eager_seconds']:.2f}",
            f"{row['compiling_seconds']:.0f}",
            row["compilations"],
            f"{row['distance']:.0e}",
            len(row["whole_compiled"]),
        ]
        for row in rows
    ]
    caption = (
        "**Measured** in one process with one thread, on two shared cores: processor milliseconds of a step, median of "
        f"{steps}, with a mini-batch of {BATCH} on {STAGES} stages. Gradients are compared with those of eager stages, "
        "relative to the largest one. `whole` counts the stages whose backward was not split."
    )
    header = ["model", "schedule", "eager, ms", "compiled, ms", "ratio", "compiling, s", "regions", "apart", "whole"]
    markdown(NAME, "Compiled stages", caption, header, lines)


if __name__ == "__main__":
    main()
