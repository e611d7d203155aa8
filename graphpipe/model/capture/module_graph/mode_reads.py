"""Whether forwards read in which mode their module is."""

import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

import torch
from torch import fx, nn

from graphpipe.model.capture.module_graph.module_graph import mode_dropout


@contextmanager
def observed_modes(modules: Iterable[nn.Module]) -> Generator[set[nn.Module]]:
    """While inside, collect those of the modules whose `training` is read by code other than PyTorch's own."""
    reads: set[nn.Module] = set()
    kinds = {module: type(module) for module in modules}
    observed = {kind: _observed(kind, reads) for kind in set(kinds.values())}
    for module, kind in kinds.items():
        module.__class__ = observed[kind]
    try:
        yield reads
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


def follow_modes(graph: fx.Graph, owners: Collection[str]) -> None:
    """Let every dropout in the forwards of these modules follow the mode of its stage.

    Args:
        graph: of a module.
        owners: paths of modules whose forwards read their mode.
    """
    for node in graph.nodes:
        if node.target is torch.ops.aten.dropout.default and node.meta["owner"] in owners:
            node.target, node.args = mode_dropout, node.args[:2]


def _observed(kind: type[nn.Module], reads: set[nn.Module]) -> type[nn.Module]:
    def read(module: nn.Module) -> bool:
        reader = sys._getframe(1).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
        if not reader.startswith("torch."):
            reads.add(module)
        return vars(module)["training"]

    def write(module: nn.Module, training: bool) -> None:
        vars(module)["training"] = training

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "training": property(read, write)}
    return type(kind.__name__, (kind,), names)
