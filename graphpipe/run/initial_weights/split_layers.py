"""Layers that a plan splits, while they are filled: the whole has memory only until its slices are cut out."""

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import nn

from graphpipe.model.split.submodules import sliced
from graphpipe.run.device.tensor_memory import give_memory, take_memory
from graphpipe.run.initial_weights.init_code import own_reset, paths_inner_first
from graphpipe.run.initial_weights.weight_source import OwnTensor


@final
class BorrowedLayers:
    """Gives whole parameters memory before their submodule is filled, and cuts the wanted slices out afterwards.

    Args:
        model: the user's.
        wanted: the tensors that a rank fills.
    """

    def __init__(self, model: nn.Module, wanted: Sequence[OwnTensor]) -> None:
        self._model = model
        self._slices = [each for each in wanted if each.piece is not None]
        order = [path for path, _ in paths_inner_first(model)]
        self._last = {
            each.name: max(_filling(model, each.name), key=order.index) for each in self._slices
        }  # A module around the layer may fill it too.

    def before(self, path: str) -> None:
        """Give memory to the split parameters of a submodule."""
        for each in self._slices:
            if each.name.rpartition(".")[0] == path and each.whole.is_meta:
                give_memory(each.whole, [self._model])

    def after(self, path: str) -> None:
        """Cut slices out of the parameters that no further code fills, and take the memory of these."""
        done = [each for each in self._slices if self._last[each.name] == path]
        with torch.no_grad():
            for each in done:
                assert each.piece is not None
                each.tensor.copy_(sliced(each.whole, each.piece))
        for each in done:
            if not each.whole.is_meta:
                take_memory(each.whole, [self._model])


def _filling(model: nn.Module, name: str) -> Iterator[str]:
    # The paths of the modules whose code may fill a parameter: its own, and those around it.
    path = name.rpartition(".")[0]
    yield path
    while path:
        path = path.rpartition(".")[0]
        if own_reset(model.get_submodule(path)) is not None:
            yield path
