"""A region of a stage: operators that the stage can compute twice, called as one module."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

Keeper = Callable[[nn.Module, tuple[Any, ...]], Any]
"""Computes a module on arguments, and sees to what stays of that for the backward."""


class Region(nn.Module):
    """Calls the operators' graph module, through `keeper` where one is set and a graph is recorded."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.inner = inner
        self.keeper: Keeper | None = None

    def forward(self, *args: Any) -> Any:
        """Return what the graph module returns."""
        if self.keeper is None or not torch.is_grad_enabled():
            return self.inner(*args)
        return self.keeper(self.inner, args)


def regions_of(module: nn.Module) -> list[Region]:
    """Return the regions in a stage's module."""
    return [inner for inner in module.modules() if isinstance(inner, Region)]


def fold(graph: fx.Graph, make: Callable[[str, fx.Graph], nn.Module]) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """Return the graph with every region (nodes of equal `meta["region"]`) as one call, and the modules it calls.

    Whatever lies between two nodes of a region without depending on it comes before it: random numbers are those of the
    unfolded graph where a region's nodes follow each other, as the nodes of a submodule do.

    Args:
        graph: of a stage; its regions, each as one node, form an acyclic graph with the others.
        make: makes the module that runs the graph of a region of some name.
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
        """Place a node, or the whole of its region, after all that it reads."""
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
        self.modules[target] = Region(name, self.make(name, graph))
        called = self.found.call_module(target, tuple(self.placed[value] for value in read))
        for at, value in enumerate(results):
            self.placed[value] = self.found.call_function(operator.getitem, (called, at))
        # Others of the region are read by nobody outside: they only need to count as placed.
        self.placed |= {node: called for node in mine if node not in self.placed}


def _cut_out(mine: list[fx.Node], read: list[fx.Node]) -> tuple[fx.Graph, list[fx.Node]]:
    """Return the graph of some nodes, its arguments being `read`, and the nodes whose values it returns."""
    graph, inside = fx.Graph(), frozenset(mine)
    env = {value: graph.placeholder(value.name) for value in read}
    for node in mine:
        env[node] = graph.node_copy(node, env.__getitem__)
    results = [node for node in mine if any(user not in inside for user in node.users)]
    graph.output(tuple(env[node] for node in results))
    return graph, results
