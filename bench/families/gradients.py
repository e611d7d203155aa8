"""Loss and gradients of a captured model that is cut between all operators, against plain PyTorch in one process."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Graph
from graphpipe.model.own_loss.from_transformers import TransformersModel
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans.plan import Plan
from graphpipe.run import Pipeline
from graphpipe.run.stage.tensor_tree import leaves

SINGLE = (
    *("autoformer", "canine", "dab-detr", "gemma4_audio", "kosmos-2", "mimi", "mra", "prophetnet", "slanet", "slanext"),
    "xglm",
)
"""Families whose forward does not run in double precision, also in plain PyTorch, or returns NaN."""
CANCELLING = 1e-3
"""A gradient that is a sum of terms that cancel is rounded relative to its terms. Its size counts as at least this
share of the model's largest gradient."""


def precise(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a model and a mini-batch in double precision, unless the model has experts or is one of `SINGLE`.

    Torch does not multiply the matrices of experts in double precision. Some other models compute norms or angles in
    single precision by themselves.
    """
    experts = any(path.endswith("experts") for path, _ in model.named_modules())
    if experts or getattr(model.config, "model_type", "") in SINGLE:
        return model, dict(batch)
    return model.double(), {name: each.double() if each.is_floating_point() else each for name, each in batch.items()}


def mean_square(output: Any, targets: object) -> Tensor:
    """Return the sum over all outputs of a weighted mean of their squares: a loss for any model.

    The features have unequal weights. Without them, the gradients of an output that the model has normed would vanish.
    All samples have the same weight.
    """
    del targets
    found = [each for each in leaves(output) if each.is_floating_point()]
    return torch.stack([(each.square() * _weights(each)).mean() for each in found]).sum()


def _weights(output: Tensor) -> Tensor:
    return torch.linspace(1, 2, output.shape[-1] if output.dim() > 1 else 1, dtype=output.dtype)


def plain_gradients(model: nn.Module, batch: Mapping[str, Tensor], *, own: bool) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a whole mini-batch and its gradients by name, without a pipeline.

    Args:
        model: of transformers.
        batch: a mini-batch.
        own: whether the loss is the model's own; otherwise it is `mean_square`.
    """
    model.zero_grad()
    arguments = {"use_cache": False} if own and hasattr(model.config, "use_cache") else {}
    output = model(**batch, **arguments)
    loss = output.loss if own else mean_square(output, None)
    loss.backward()
    return loss.item(), {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def cut_everywhere(graph: Graph, batch_size: int, micro_batch: int) -> Plan:
    """Return the plan with one stage for each operator."""
    cluster = Cluster.preset(f"local:{len(graph.ops)}")
    stages = [
        HandStage(ops=(op.name,), devices=(number,), micro_batch=batch_size if op.whole_batch else micro_batch)
        for number, op in enumerate(graph.ops)
    ]
    return hand_plan(graph, estimate(graph, cluster), cluster, batch_size=batch_size, stages=stages)


def distance(held: TransformersModel, batch: Mapping[str, Tensor]) -> float:
    """Return how far loss and gradients of a pipeline are from plain PyTorch, relative to their size.

    A mini-batch is divided into two micro-batches, unless batch norm computes statistics of a micro-batch.

    Args:
        held: a captured model.
        batch: a mini-batch.
    """
    own = held.loss is not None
    loss, expected = plain_gradients(held.module, batch, own=own)
    inputs, targets = held.batch(batch)
    samples = len(next(iter(inputs.values())))
    normed = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in held.module.modules())
    plan = cut_everywhere(held.graph, samples, samples if normed else samples // 2)
    with Pipeline(plan, held.module, held.loss_fn if own else mean_square) as pipeline:
        away = [abs(pipeline.step(inputs, targets) - loss) / abs(loss)]
        found = {name: each for name, each in pipeline.gradients().items() if each is not None}
    return max(away + furthest(found, expected, held.module))


def furthest(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], module: nn.Module) -> list[float]:
    """Return how far gradients are from those of plain PyTorch, each relative to its own largest element.

    Args:
        found: gradients by the name of a parameter.
        expected: likewise. A missing one is zero: the loss does not depend on that parameter.
        module: with all of the parameters.
    """
    largest = max(each.abs().max().item() for each in expected.values() if each.numel())
    away: list[float] = []
    for name in (name for name in found.keys() | expected.keys() if module.get_parameter(name).numel()):
        zero = torch.zeros_like(module.get_parameter(name))
        one, other = found.get(name, zero), expected.get(name, zero)
        away.append((one - other).abs().max().item() / max(other.abs().max().item(), CANCELLING * largest))
    return away
