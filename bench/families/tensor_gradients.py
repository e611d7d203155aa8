"""Loss and gradients of models whose layers ranks share, against plain PyTorch: families of Hugging Face, and others.

On 2 ranks both share the whole model, and on 4 there are two stages of two ranks. A rank compares the gradients of its
own parts.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from bench.families.gradients import furthest
from bench.families.ordinary_models import ORDINARY
from bench.families.rank_gradients import NAMES, Tried, divided, family, on_ranks, ordinary
from bench.families.table import FAMILIES
from bench.record import save
from bench.tables import markdown
from graphpipe.graph import ParameterSlice
from graphpipe.model.capture.capture import capture
from graphpipe.model.shards.with_shards import with_shards
from graphpipe.model.split.submodules import sliced
from graphpipe.model.zoo.registry import ZOO, zoo_model
from graphpipe.run import Pipeline

RANKS, SHARED = (2, 4), 2


class Layers(nn.Module):
    """Layers of `torch.nn`, which have queries, keys and values in one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        kinds: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
        self.first, self.second = (
            nn.TransformerEncoderLayer(16, 4, 32, norm_first=flag, **kinds) for flag in (False, True)
        )
        self.third = nn.TransformerDecoderLayer(16, 4, 32, **kinds)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        values = self.second(self.first(self.embedding(tokens)))
        return self.head(self.third(values, values))


def zoo(name: str) -> Tried:
    """Return a small model of the zoo, or one of the layers of torch."""
    torch.manual_seed(0)
    if name == "torch layers":
        module: nn.Module = Layers().double()
        inputs: dict[str, Tensor] = {"tokens": torch.randint(32, (8, 6))}
        targets: Any = torch.randint(32, (8, 6))
        loss_fn: Callable[[Any, Any], Tensor] = lambda found, wanted: functional.cross_entropy(  # noqa: E731
            found.flatten(0, 1), wanted.flatten()
        )
    else:
        model = zoo_model(f"{name}-small")
        module, loss_fn = model.module.double(), model.loss_fn
        inputs, targets = model.batch(torch.Generator().manual_seed(0), 8)
        inputs = {key: each.double() if each.is_floating_point() else each for key, each in inputs.items()}

    def plain() -> tuple[float, dict[str, Tensor]]:
        module.zero_grad()
        loss = loss_fn(module(**inputs), targets)
        loss.backward()
        return loss.item(), {key: each.grad.clone() for key, each in module.named_parameters() if each.grad is not None}

    graph = capture(module, inputs)
    return Tried(module=module, graph=graph, inputs=inputs, targets=targets, loss_fn=loss_fn, plain=plain)


def distance(tried: Tried, ranks: int) -> float:
    """Return how far loss and gradients are from plain PyTorch, on all ranks together; each rank calls this."""
    loss, expected = tried.plain()
    with Pipeline(divided(tried, ranks, SHARED), tried.module, tried.loss_fn) as pipeline:
        away = [abs(pipeline.step(tried.inputs, tried.targets) - loss) / abs(loss)]
        found = {name: each for name, each in pipeline.gradients().items() if each is not None}
    whole = placed(found, expected)
    own = {name: expected[name] for name in whole}
    away += furthest(whole, own, tried.module) if own else []
    everywhere: list[Any] = [None] * ranks
    dist.all_gather_object(everywhere, max(away))
    return max(everywhere)


def placed(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole gradients, with the slices that a rank has in the place of what is expected there."""
    whole: dict[str, Tensor] = {}
    for name, gradient in found.items():
        piece = ParameterSlice.parse(name)
        if piece is None and name in expected:
            whole[name] = gradient
        elif piece is not None and piece.parameter in expected:
            into = whole.setdefault(piece.parameter, expected[piece.parameter].clone())
            sliced(into, piece).copy_(gradient)
    return whole


def tried_of(name: str, *, sequence: bool = False) -> Tried:
    """Return a model by its name, whose graph says how ranks can share its operators.

    Args:
        name: of the model.
        sequence: whether they also divide the sequence.
    """
    if name in ORDINARY:
        tried = ordinary(name)
    else:
        tried = zoo(name) if name in ZOO or name == "torch layers" else family(name, even=sequence)
    return replace(tried, graph=with_shards(tried.graph, tried.module, sequence_parallel=sequence))


def saved_share(tried: Tried) -> float:
    """Return what one of two ranks saves for the backward if they divide the sequence, relative to if they do not."""
    saved = {True: 0.0, False: 0.0}
    for op in tried.graph.ops:
        for used in saved:
            shards = op.shards and op.shards.with_sequence(used=used)
            part = shards.figures_of(SHARED).saved_bytes_per_sample if shards else 0.0
            saved[used] += op.work.saved_bytes_per_sample - part * (1 - 1 / SHARED)
    return saved[True] / saved[False] if saved[False] else 1.0


def main(
    names: Annotated[Sequence[str], {**FAMILIES, **ORDINARY, **ZOO, "torch layers": None}] = (),
    *,
    sequence: bool = False,
) -> None:
    """Run the benchmark and write JSON.

    Args:
        names: models to try. Without names, those that people train, and small ones of the zoo.
        sequence: also divide the sequence between the layers that ranks share
    """
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in names or ("gpt", "two-tower", "mmt", "torch layers", *NAMES):
        row: dict[str, Any] = {"model": name}
        try:
            tried = tried_of(name, sequence=sequence)
            if sequence:
                row |= {"sequence": sum(bool(op.shards and op.shards.sequence) for op in tried.graph.ops)}
                row |= {"saved": saved_share(tried)}
            sizes = [(op.parameter_bytes, op.shards.parameter_bytes if op.shards else 0.0) for op in tried.graph.ops]
            row |= {"operators": len(sizes), "divided": sum(each for _, each in sizes) / sum(each for each, _ in sizes)}
            row |= {f"away_{ranks}": on_ranks({name: tried}, ranks, distance)[name] for ranks in RANKS}
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        print(row, flush=True)
        sys.stdout.flush()
        rows.append(row)
    if not names:
        save("sequence_gradients" if sequence else "tensor_gradients", rows)
        if not sequence:
            page(rows)


def page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of the results.

    Args:
        rows: by model: operators, the divided share of parameters, and distances on 2 and 4 ranks, or an error.
    """
    done = [row for row in rows if "error" not in row]
    caption = (
        f"{len(done)} of {len(rows)} models train so. Divided is the share of the parameters of which each rank has a "
        "part. Distances are relative, of the loss and all gradients. Models with experts compute in single precision."
    )
    lines = [
        [row["model"], row["operators"], f"{row['divided']:.0%}", *(f"{row[f'away_{ranks}']:.0e}" for ranks in RANKS)]
        for row in done
    ]
    title = "Gradients of layers that ranks share"
    markdown("tensor_gradients", title, caption, ["model", "operators", "divided", "2 ranks", "4 ranks"], lines)
