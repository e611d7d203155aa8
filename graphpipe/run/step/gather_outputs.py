"""Gathers the model's outputs of an evaluation from several ranks, and joins them on all of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.world import World
from graphpipe.run.stage.tensor_tree import describe, find_unknown_type, leaves, map_tensors, rebuild

Piece = tuple[SampleRange, Any]
"""Samples, and the model's output (a tree of tensors) for them."""


def gather_outputs(world: World, own: Sequence[Piece]) -> Any:
    """Return the model's output for all samples, on every rank; every rank must call this.

    Raises:
        InvalidInput: see `join`; or there are several pieces or ranks, and an output is an object of an unknown type.
    """
    unknown = [kind.__name__ for _, tree in own if (kind := find_unknown_type(tree)) is not None]
    described = world.exchange([unknown, [[rows.start, rows.stop, describe(tree)] for rows, tree in own]])
    _check(described)
    pieces: list[Piece] = []
    for rank, (_, listed) in enumerate(described):
        for number, (start, stop, description) in enumerate(listed):
            tree = own[number][1] if rank == world.rank else _to(rebuild(description), world.device)
            for leaf in leaves(tree):
                world.broadcast(leaf if leaf.is_contiguous() else leaf.contiguous(), rank)
            pieces.append((SampleRange(start, stop), tree))
    return join(pieces)


def join(pieces: Sequence[Piece]) -> Any:
    """Join the pieces into one tree, with rows in the order of the samples.

    Raises:
        InvalidInput: there are several pieces, and a tensor in them does not have one row per sample.
    """
    pieces = sorted(pieces, key=lambda piece: piece[0])
    if len(pieces) == 1:
        return pieces[0][1]
    for rows, tree in pieces:
        for leaf in leaves(tree):
            if not leaf.ndim or leaf.shape[0] != len(rows):
                raise InvalidInput(
                    f"an output of shape {list(leaf.shape)} for {len(rows)} samples cannot be put together",
                    where="evaluate",
                    remedy="Return one row per sample, or mark the stage as needing the whole batch.",
                )
    columns: Iterator[tuple[Tensor, ...]] = zip(*(leaves(tree) for _, tree in pieces), strict=True)
    return map_tensors(pieces[0][1], lambda _: torch.cat(next(columns)))


def _check(described: Sequence[Any]) -> None:
    # The tensors inside an unknown object cannot be found: rows of other pieces would be missing without an error.
    names = [name for unknown, _ in described for name in unknown]
    if names and (len(described) > 1 or sum(len(listed) for _, listed in described) > 1):
        raise InvalidInput(
            f"the model returns a {names[0]}, whose tensors cannot be put together",
            where="evaluate",
            remedy="Return tensors, tuples, lists, dicts or a dataclass.",
        )


def _to(tree: Any, device: torch.device) -> Any:
    return map_tensors(tree, lambda tensor: tensor.to(device))
