"""Gradients of compiled stages against plain PyTorch, and what falls back: families of Hugging Face.

Each family has two stages, in one process, under whole backwards and under backwards in two halves.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch

from bench.families.gradients import furthest
from bench.families.rank_gradients import Tried, divided, family
from bench.families.table import FAMILIES
from bench.record import save
from bench.tables import markdown
from graphpipe.run import Pipeline, PipelineOptions

NAME, STEPS = "compiled-gradients", 3
NAMES = (
    *("llama", "mistral", "qwen2", "gemma2", "gpt2", "mixtral", "qwen3_moe", "mamba2", "bert", "modernbert"),
    *("deberta-v2", "t5", "bart", "whisper", "vit", "swin", "clip"),
)
SCHEDULES = ("1f1b", "zb-h1")


def trained(tried: Tried, schedule: str, *, compiled: bool) -> dict[str, Any]:
    """Train without changing a weight; return how far loss and gradients of the last step are, and what fell back."""
    loss, expected = tried.plain()
    tried.module.zero_grad()
    options = PipelineOptions(compile=compiled, alone=True)
    plan = replace(divided(tried, ranks=2), schedule=schedule)
    optimizer = partial(torch.optim.SGD, lr=0.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Pipeline(plan, tried.module, tried.loss_fn, optimizer, options=options) as pipeline:
            losses = [pipeline.step(tried.inputs, tried.targets) for _ in range(STEPS)]
            found = {name: each for name, each in pipeline.gradients().items() if each is not None}
            return {
                "distance": max(abs(losses[-1] - loss) / abs(loss), *furthest(found, expected, tried.module)),
                "eager": sorted({str(each.message) for each in warned if "runs eagerly" in str(each.message)}),
                "whole": {name: how for name, how in pipeline.backwards().items() if how != "split"},
                "compilations": dict(pipeline.compilations),
            }


def measure(name: str, schedule: str) -> dict[str, Any]:
    """Return the row of a family under a schedule."""
    plain = trained(family(name), schedule, compiled=False)
    compiled = trained(family(name), schedule, compiled=True)
    return {"family": name, "schedule": schedule, "whole_eager": plain["whole"], **compiled}


def main(names: Annotated[Sequence[str], FAMILIES] = ()) -> None:
    """Run the benchmark, and write JSON and a table.

    Args:
        names: families to try. Without names, those that people train.
    """
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in names or NAMES:
        for schedule in SCHEDULES:
            rows.append(measure(name, schedule))
            print(rows[-1], flush=True)
    if not names:
        save(NAME, rows)
        page(rows)


def page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of the results."""
    lines = [
        [
            row["family"],
            row["schedule"],
            sum(row["compilations"].values()),
            len(row["eager"]),
            len(row["whole"]),
            len(row["whole_eager"]),
            f"{row['distance']:.0e}",
        ]
        for row in rows
    ]
    caption = (
        "Tiny models with random weights on two stages, in one process. `regions` are the forwards that were compiled, "
        "and `failed` the regions of which the compiler failed on a part. `whole` are the stages whose backward was "
        "not split, compiled and eager. `apart` is the distance of the loss and all gradients from plain PyTorch. Most "
        "models compute in double precision."
    )
    header = ["family", "schedule", "regions", "failed", "whole", "whole if eager", "apart"]
    markdown(NAME, "Compiled stages of Hugging Face's families", caption, header, lines)
