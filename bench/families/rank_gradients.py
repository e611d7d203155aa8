"""Loss and gradients of models on 2 and 4 ranks against plain PyTorch: families of Hugging Face and ordinary modules.

A model is captured once, and its operators are divided into one stage for each rank. The ranks are forked once, train
one step of every model, and compare the gradients of their own parameters.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.families.build import build_family
from bench.families.families import PAGE, captured
from bench.families.gradients import furthest, mean_square, plain_gradients, precise
from bench.families.inputs import LENGTH
from bench.families.ordinary_models import ORDINARY
from bench.families.table import FAMILIES
from bench.record import RESULTS, save
from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans.plan import Plan
from graphpipe.run import Pipeline

HEADER = "| Model | Operators | 2 ranks | 4 ranks |"
RANKS = (2, 4)
NAMES = (
    *("llama", "mistral", "mixtral", "mixtral, router losses", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"),
    *("phi3", "gpt_neox", "olmo2", "falcon", "mamba2", "modernbert", "t5", "bart", "whisper", "wav2vec2", "vit"),
    *("dinov2", "siglip", "clip", "blip", "vision-encoder-decoder", "detr", "llava", "idefics", "segformer", "swin"),
    *("gpt2", "opt", "bloom", "gpt_oss", "bert", "roberta", "deberta-v2", "distilbert", "electra", "albert", "xlnet"),
    *("mt5", "marian", "longt5", "hubert", "convnext", "resnet", "vit_mae", "videomae", "deformable_detr", "smolvlm"),
    *("qwen2_vl", "qwen2_5_vl", "glm4v", "internvl"),
)
"""Families that people train, and those with loops, shared values, experts or several inputs."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


Measure = Callable[["Tried", int], float]
"""Returns the distance of a model on so many ranks; each rank calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A captured model with a mini-batch."""

    module: nn.Module
    graph: Graph
    inputs: dict[str, Tensor]
    targets: Any
    loss_fn: Callable[[Any, Any], Tensor]
    plain: Callable[[], tuple[float, dict[str, Tensor]]]
    """Loss and gradients by plain PyTorch."""


def family(name: str, *, even: bool = False) -> Tried:
    """Return a family of Hugging Face.

    Args:
        name: of the family.
        even: whether texts have an even number of words, which two ranks can divide.
    """
    torch.manual_seed(0)
    model, example = precise(*build_family(name))
    if even:
        length = LENGTH - LENGTH % 2
        example = {
            key: each[:, :length].contiguous() if each.shape[1:2] == (LENGTH,) else each
            for key, each in example.items()
        }
    held, _, reason = captured(model, example)
    assert held is not None, f"{name}: {reason}"
    inputs, targets = held.batch(example)
    own = held.loss is not None
    return Tried(
        module=model,
        graph=held.graph,
        inputs=inputs,
        targets=targets,
        loss_fn=held.loss_fn if own else mean_square,
        plain=lambda: plain_gradients(model, example if own else inputs, own=own),
    )


def ordinary(name: str) -> Tried:
    """Return an ordinary module."""
    torch.manual_seed(0)
    kind, example = ORDINARY[name]
    module = kind().double()
    inputs = {key: each.double() if each.is_floating_point() else each for key, each in example.items()}

    def plain() -> tuple[float, dict[str, Tensor]]:
        module.zero_grad()
        loss = mean_square(module(**inputs), None)
        loss.backward()
        return loss.item(), {key: each.grad.clone() for key, each in module.named_parameters() if each.grad is not None}

    graph = capture(module, inputs)
    return Tried(module=module, graph=graph, inputs=inputs, targets=None, loss_fn=mean_square, plain=plain)


def divided(tried: Tried, ranks: int, shared: int = 1) -> Plan:
    """Return the plan with one stage for each rank and two micro-batches, unless batch norm needs a whole one.

    Args:
        tried: the model.
        ranks: in all.
        shared: how many of them share each stage.
    """
    ops = [op for name in tried.graph.order for op in tried.graph.ops if op.name == name]
    batch_size = len(next(iter(tried.inputs.values())))
    normed = any(isinstance(part, NORMS) for part in tried.module.modules())
    count = ranks // shared
    ends = [round(len(ops) * number / count) for number in range(count + 1)]
    stages: list[HandStage] = []
    for number in range(count):
        own = ops[ends[number] : ends[number + 1]]
        whole = normed or any(op.whole_batch for op in own)
        names = tuple(op.name for op in own)
        devices = tuple(range(number * shared, (number + 1) * shared))
        size = batch_size // (1 if whole else 2)
        stages.append(HandStage(ops=names, devices=devices, micro_batch=size, tensor=shared))
    cluster = Cluster.preset(f"local:{ranks}")
    costs = estimate(tried.graph, cluster)
    divides = any(op.shards is not None and op.shards.sequence is not None for op in tried.graph.ops)
    return hand_plan(
        tried.graph, costs, cluster, batch_size=batch_size, stages=stages, sequence_parallel=divides and shared > 1
    )


def distance(tried: Tried, ranks: int) -> float:
    """Return how far loss and gradients are from plain PyTorch, on all ranks together; each rank calls this."""
    loss, expected = tried.plain()
    with Pipeline(divided(tried, ranks), tried.module, tried.loss_fn) as pipeline:
        away = [abs(pipeline.step(tried.inputs, tried.targets) - loss) / abs(loss)]
        found = {name: each for name, each in pipeline.gradients().items() if each is not None}
    own = {name: each for name, each in expected.items() if name in found}
    away += furthest(found, own, tried.module) if own else []
    covered: list[Any] = [None] * ranks
    dist.all_gather_object(covered, (max(away), [*found]))
    names = {name for _, each in covered for name in each}
    missing = {name: each for name, each in expected.items() if name not in names}
    assert all(not each.any() for each in missing.values()), f"without gradients: {[*missing]}"
    return max(each for each, _ in covered)


def _rank(models: dict[str, Tried], rank: int, ranks: int, folder: Path, measure: Measure) -> None:
    # What a forked rank does; rank 0 writes a line for each model.
    store = dist.FileStore(str(folder / f"store {ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    for name, tried in models.items():
        away = measure(tried, ranks)
        if not rank:
            with (folder / str(ranks)).open("a") as lines:
                lines.write(f"{away}\t{name}\n")
    dist.destroy_process_group()


def on_ranks(models: dict[str, Tried], ranks: int, measure: Measure = distance) -> dict[str, float]:
    """Return the distances of models on so many ranks of this machine.

    Args:
        models: by name.
        ranks: how many.
        measure: what each rank does with each model.

    Raises:
        RuntimeError: a rank failed. It has printed why.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children: list[int] = []
        for rank in range(ranks):
            if child := os.fork():
                children.append(child)
                continue
            status = 1
            try:
                _rank(models, rank, ranks, folder, measure)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
        lines = [each.split("\t") for each in (folder / str(ranks)).read_text().splitlines()]
    if failed:
        raise RuntimeError(f"{len(failed)} of {ranks} ranks failed after {len(lines)} of {len(models)} models")
    return {name: float(away) for away, name in lines}


def main(names: Annotated[Sequence[str], {**FAMILIES, **ORDINARY}] = ()) -> None:
    """Run the benchmark, write JSON and the table of docs/models.md.

    Args:
        names: models to try; the saved rows of the others stay. Without names, those that people train.
    """
    torch.set_num_threads(1)
    models = {name: family(name) for name in names or NAMES if name not in ORDINARY}
    models |= {name: ordinary(name) for name in names or ORDINARY if name in ORDINARY}
    found = {ranks: on_ranks(models, ranks) for ranks in RANKS}
    rows = [
        {"model": name, "operators": len(tried.graph.ops), **{f"away_{ranks}": found[ranks][name] for ranks in RANKS}}
        for name, tried in models.items()
    ]
    print(*map(line, rows), sep="\n")
    known = {row["model"]: row for row in json.loads((RESULTS / "rank_gradients.json").read_text())["rows"]}
    known |= {row["model"]: row for row in rows}
    rows = [known[name] for name in (*NAMES, *ORDINARY) if name in known]
    save("rank_gradients", rows)
    before, _, rest = PAGE.read_text().partition(HEADER)
    table = "\n".join((HEADER, "|---|---|---|---|", *map(line, rows)))
    PAGE.write_text(before + table + rest[rest.index("\n\n") :])


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    return f"| {row['model']} | {row['operators']} | {row['away_2']:.0e} | {row['away_4']:.0e} |"
