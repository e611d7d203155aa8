"""Tries linear layers with adapters: what two threads compute by columns, or by rows, is compared with the whole."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from graphpipe.graph import SubmoduleShards
from graphpipe.model.shards.drawn import near, slice_of, with_drawn
from graphpipe.model.shards.layers.adapted import adapted_of
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.trial import MOST, ThreadTeam, computed_by_two

_PATH = "layer"


def can_be_divided(module: nn.Module, style: Literal["column", "row"]) -> bool:
    """Return whether two ranks compute with parts of a linear layer with adapters what one computes.

    The forward of an adapter may do something between or behind its matrices that parts do otherwise. A layer with more
    than 2**26 elements is not tried.

    Args:
        module: the layer, with or without data. It does not change.
        style: of its parts.
    """
    structure = adapted_of(module)
    assert structure is not None, "a linear layer with adapters"
    if style == "row" and structure.has_biases:
        return False
    if sum(each.numel() for each in module.parameters()) > MOST:
        return True
    whole = with_drawn(module).eval()
    row, width = style == "row", 2
    dtype = next(whole.parameters()).dtype
    values = torch.randn(width, structure.inputs, generator=torch.Generator().manual_seed(2)).to(dtype)
    copied = [each for name, each in whole.named_parameters() if name not in structure.divided(style)]

    def computed(layer: nn.Module, given: Tensor, weights: Tensor) -> list[Tensor | None]:
        given = given.clone().requires_grad_()
        with torch.enable_grad():
            result = layer(given)
            roots = [given, *(each for each in copied if each.requires_grad)]
            gradients = torch.autograd.grad((result * weights).sum(), roots, allow_unused=True)
        return [result.detach(), *gradients]

    def compute(team: ThreadTeam) -> list[Tensor | None]:
        shards = [SubmoduleShards(submodule=_PATH, style=style)]
        made = SharedSubmodule(shards, team, lambda piece: slice_of(whole, _PATH, piece)).make(whole, _PATH)
        return computed(made, _half(values, team) if row else values, weights if row else _half(weights, team))

    weights = torch.linspace(1, 2, structure.outputs, dtype=dtype).expand(width, -1)
    try:
        wanted = computed(whole, values, weights)
    except Exception:  # any error of a forward that does not take one value
        return False
    for position, own in enumerate(computed_by_two(compute)):
        if own is None:
            return False
        expected, divided = [*wanted], wanted[1 if row else 0]
        expected[1 if row else 0] = None if divided is None else divided.chunk(2, -1)[position]
        if not all(map(_alike, own, expected)):
            return False
    return True


def _half(values: Tensor, team: ThreadTeam) -> Tensor:
    return values.chunk(2, -1)[team.position]


def _alike(own: Any, wanted: Any) -> bool:
    return own is wanted if own is None or wanted is None else near(own, wanted)
