"""Whether forwards read in which mode their module is."""

import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

import torch
from torch import fx, nn

from graphpipe.model.capture.module_graph.calls.observed_attributes import attributes_observed
from graphpipe.model.capture.module_graph.module_graph import mode_dropout


@contextmanager
def observed_modes(modules: Iterable[nn.Module]) -> Generator[set[nn.Module]]:
    """While inside, collect those of the modules whose `training` is read by code other than PyTorch's own."""
    reads: set[nn.Module] = set()

    def note(module: nn.Module, name: str) -> None:
        reader = sys._getframe(2).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
        if not reader.startswith("torch."):
            reads.add(module)

    with attributes_observed(dict.fromkeys(modules, ("training",)), note):
        yield reads


def follow_modes(graph: fx.Graph, owners: Collection[str]) -> None:
    """Let every dropout in the forwards of these modules follow the mode of its stage.

    Args:
        graph: of a module.
        owners: paths of modules whose forwards read their mode.
    """
    for node in graph.nodes:
        if node.target is torch.ops.aten.dropout.default and node.meta["owner"] in owners:
            node.target, node.args = mode_dropout, node.args[:2]
