"""A region of a stage: operators that the stage can recompute, called as one module."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

Keeper = Callable[[nn.Module, tuple[Any, ...]], Any]
"""Calls a module with arguments, and decides what is saved for the backward."""


class RecomputeRegion(nn.Module):
    """Calls the graph module of its operators; while autograd records, through `keeper` if that is set."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.inner = inner
        self.keeper: Keeper | None = None

    def forward(self, *args: Any) -> Any:
        """Return the result of the graph module."""
        if self.keeper is None or not torch.is_grad_enabled():
            return self.inner(*args)
        return self.keeper(self.inner, args)


def recompute_regions(module: nn.Module) -> list[RecomputeRegion]:
    """Return the regions in a stage's module."""
    return [inner for inner in module.modules() if isinstance(inner, RecomputeRegion)]


def fold_regions(graph: fx.Graph, make: Callable[[str, fx.Graph], nn.Module]) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """Return the graph with every region (nodes of equal `meta["region"]`) as one call, and the modules it calls.

    Nodes between two nodes of a region that do not depend on the region come before it. Random numbers equal those of
    the original graph if the nodes of every region are consecutive, as the nodes of a submodule are.

    Args:
        graph: of a stage; it stays acyclic when each region becomes one node.
        make: returns the module that runs the graph of a region, given the region's name and graph.
    """
    folding = _Folding(graph, make)
    for node in graph.nodes:
        folding.place(node)
    return folding.found, folding.modules


class _Folding:
    def __init__(self, graph: fx.Graph, make: Callable[[str, fx.Graph], nn.Module]) -> None:
        self.make = make
        self.found = fx.Graph()
        self.modules: dict[str, nn.Module] = {}
        self.placed: dict[fx.Node, fx.Node] = {}
        self.inside: dict[str, list[fx.Node]] = {}
        for node in graph.nodes:
            if "region" in node.meta:
                self.inside.setdefault(node.meta["region"], []).append(node)

    def place(self, node: fx.Node) -> None:
        """Place a node, or its whole region, after everything that it reads."""
        if node in self.placed:
            return
        if "region" in node.meta:
            self._place_region(node.meta["region"])
        else:
            self._place_all(node.all_input_nodes)
            self.placed[node] = self.found.node_copy(node, self.placed.__getitem__)

    def _place_all(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            self.place(node)

    def _place_region(self, name: str) -> None:
        mine = dict.fromkeys(self.inside[name])
        read = [*dict.fromkeys(value for node in mine for value in node.all_input_nodes if value not in mine)]
        self._place_all(read)
        target = f"region_{len(self.modules)}"
        graph, results = _cut_out([*mine], read)
        self.modules[target] = RecomputeRegion(name, self.make(name, graph))
        called = self.found.call_module(target, tuple(self.placed[value] for value in read))
        for at, value in enumerate(results):
            self.placed[value] = self.found.call_function(operator.getitem, (called, at))
        # The other nodes of the region are not read outside it. They only need to count as placed.
        self.placed |= {node: called for node in mine if node not in self.placed}


def _cut_out(mine: list[fx.Node], read: list[fx.Node]) -> tuple[fx.Graph, list[fx.Node]]:
    """Return the graph of some nodes, with the values `read` as arguments, and the nodes whose values it returns."""
    graph, inside = fx.Graph(), frozenset(mine)
    env = {value: graph.placeholder(value.name) for value in read}
    for node in mine:
        env[node] = graph.node_copy(node, env.__getitem__)
    results = [node for node in mine if any(user not in inside for user in node.users)]
    graph.output(tuple(env[node] for node in results))
    return graph, results
