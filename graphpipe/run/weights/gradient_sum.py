"""Sums the gradients of a stage over its replicas, which each compute a share of the same mini-batch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.run.device.buckets import buckets, flatten


def sum_between_ranks(world: World, parameters: Sequence[nn.Parameter], ranks: Sequence[int], stage: str) -> None:
    """Replace each parameter's gradient by its sum over the ranks, which all have these parameters.

    If a parameter has no gradient on any rank, its gradient stays None, so an optimizer skips it. If it lacks a
    gradient only on some ranks, it counts as zero there.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for bucket in buckets(trainable):
        own = [parameter.grad is not None for parameter in bucket]
        flat = flatten([*(_gradient(parameter, stage) for parameter in bucket), _flags(own, bucket[0])], world.device)
        world.sum(flat, ranks)
        *sums, counts = flat.split([*(parameter.numel() for parameter in bucket), len(bucket)])
        # Reading the counts waits for a GPU, until all ranks have come so far. What this rank has, the sum has.
        summed = own if all(own) else counts.tolist()
        for parameter, total, count in zip(bucket, sums, summed, strict=True):
            parameter.grad = total.view_as(parameter) if count else None


def _flags(own: Sequence[bool], like: Tensor) -> Tensor:
    if all(own):  # made where the gradients are, so that nothing is copied there
        return torch.ones(len(own), dtype=like.dtype, device=like.device)
    return torch.tensor(own, dtype=like.dtype)


def sum_copies(copies: Sequence[nn.Parameter]) -> None:
    """Sum the gradients of copies of a parameter in one process, in order. The first copy gets the sum.

    A sum of sparse gradients is sparse.
    """
    first = copies[0]
    for other in copies[1:]:
        if other.grad is not None:
            first.grad = other.grad if first.grad is None else _add(first.grad, other.grad)
            other.grad = None


def _add(one: Tensor, other: Tensor) -> Tensor:
    # Torch adds a sparse tensor to a dense one, but not the other way round.
    return other + one if one.is_sparse else one + other


def _gradient(parameter: Tensor, stage: str) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.layout != torch.strided:
        raise sparse_gradient(stage)
    return gradient


def sparse_gradient(stage: str) -> InvalidInput:
    """Return the error for a stage whose replicas are on several ranks."""
    return InvalidInput(
        "a parameter has a sparse gradient, which replicas on several ranks cannot sum",
        where=f"stage '{stage}'",
        remedy="Build the embedding with sparse=False, or plan this stage with one replica.",
    )
