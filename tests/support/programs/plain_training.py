"""A small training in one process, by plain PyTorch and by a pipeline that is cut and divided into micro-batches."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import graphpipe as gp
from graphpipe.graph import Graph, Origin
from graphpipe.model.capture.capture import capture_nodes

Batch = tuple[Any, Any]


def cut_plan(graph: Graph, *, batch_size: int, micro_batch: int, cut: int = 1, recompute: Any = "none") -> gp.Plan:
    """Return a plan of two stages, or of one if `cut` is 0. Operators with the whole mini-batch get it."""
    cluster = gp.Cluster.preset("local:2")
    names = [op.name for op in graph.ops]
    parts = [part for part in (names[:cut], names[cut:]) if part]
    whole = {op.name for op in graph.ops if op.whole_batch}
    stages = [
        gp.HandStage(
            ops=tuple(part),
            devices=(number,),
            micro_batch=batch_size if whole & set(part) else micro_batch,
            recompute=recompute,
        )
        for number, part in enumerate(parts)
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch_size, stages=stages)


def distance(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_fn: Callable[[Any, Any], Any],
    *,
    plain_loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    micro_batch: int = 2,
    cut: int = 1,
    pipeline: gp.PipelineOptions | None = None,
    **options: Any,
) -> float:
    """Return how far losses and weights are from those of plain PyTorch after some steps, in double precision.

    Args:
        model: is trained by the pipeline, and a copy of it by plain PyTorch.
        batches: inputs (a tensor, or tensors by name) and targets.
        loss_fn: of the pipeline.
        plain_loss: of plain PyTorch, if that is not the same function.
        optimizer: of both.
        micro_batch: of every stage.
        cut: the number of operators in the first stage.
        pipeline: its options.
        options: of the capture.
    """
    piped, plain = model.double(), copy.deepcopy(model).double()
    updates = optimizer([each for each in plain.parameters() if each.requires_grad])
    expected: list[float] = []
    for inputs, targets in batches:
        updates.zero_grad()
        loss = (plain_loss or loss_fn)(plain(**inputs) if isinstance(inputs, dict) else plain(inputs), targets)
        loss.backward()
        updates.step()
        expected.append(loss.item())
    inputs, _ = batches[0]
    # The pipeline gets the capture, as a rank of `graphpipe train` does. To capture took most of the time.
    chosen: dict[str, Any] = {name: tuple(value) for name, value in options.items()}
    captured = capture_nodes(piped, inputs, Origin(method="auto", **chosen))
    size = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
    plan = cut_plan(captured.graph, batch_size=size, micro_batch=micro_batch, cut=cut)
    given = replace(pipeline or gp.PipelineOptions(), captured=captured)
    with gp.Pipeline(plan, piped, loss_fn, optimizer, options=given) as it:
        losses = [it.step(*each) for each in batches]
    away = [abs(one - other) for one, other in zip(losses, expected, strict=True)]
    pairs = zip(piped.state_dict().values(), plain.state_dict().values(), strict=True)
    return max(*away, *((one - other).abs().max().item() for one, other in pairs))
