"""Series-parallel decomposition of any operator graph."""

from graphpipe.graph.irreducible import collapse_cores, contract_bicliques, drop_transitive_edges
from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.reduction import Network
from graphpipe.graph.tree import Leaf, Parallel, Series

__all__ = ["Leaf", "Parallel", "Series", "decompose"]


def decompose(graph: Graph) -> Series:
    """Return the series-parallel tree of a graph.

    Only reachability counts, so a skip connection beside a path does not change the tree.

        stem -> a1 -> a2 -> join      Series(Leaf(stem), Parallel(Series(a1, a2), Series(b)), Leaf(join))
        stem -> b --------> join
        stem -------------> join

    Several sources (sinks) are joined by a virtual one that is not in the tree. Branches are in order of their first
    operators in `graph.ops`. Two-terminal series-parallel graphs take time near linear in their size. A partial order
    is series-parallel if it does not contain a < c > b < d with the other pairs unordered. It has exactly one such
    tree, which is returned. In any other graph the smallest irreducible cores are cut into layers, one after the other.
    The tree then orders more operators than the graph does, never fewer. So every set that is convex in the tree is
    convex in the graph.
    """
    net = Network(graph)
    net.reduce()
    if not net.is_one_edge:
        drop_transitive_edges(net)
        contract_bicliques(net)
        net.reduce()
    while not net.is_one_edge:
        collapse_cores(net)
        net.reduce()
    return net.tree()
