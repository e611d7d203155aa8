"""Edge reductions: reduce a two-terminal graph to one edge, which then carries its series-parallel tree."""

from collections import deque
from collections.abc import Iterable

from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.tree import Leaf, Parallel, Series

Parts = deque[Leaf | Parallel]
"""The parts of a future Series."""
Branches = list[Parts]
"""The parallel branches on one edge, each non-empty. An edge that only orders its ends does not carry any."""


class Network:
    """A directed acyclic graph with one source and one sink whose edges carry operators, reduced in place.

    Each operator is an edge from its own in-vertex to its own out-vertex. Each dependency is an empty edge:

        a -> b, a -> c        source --> o --a--> o --> o --b--> o --> sink
                                                  `---> o --c--> o ----^
    """

    def __init__(self, graph: Graph) -> None:
        self._rank = graph.index
        self.after: list[dict[int, Branches]] = []
        """The branches on the out-edges of each vertex, by target."""
        self.before: list[dict[int, Branches]] = []
        """The branches on the in-edges of each vertex, by source (the same objects as in `after`)."""
        self.source, self.sink = self.new_vertex(), self.new_vertex()
        ends = {op.name: (self.new_vertex(), self.new_vertex()) for op in graph.ops}
        for name, (enter, leave) in ends.items():
            self.add(enter, leave, [deque([Leaf(name)])])
            if not graph.predecessors[name]:
                self.add(self.source, enter, [])
            if not graph.successors[name]:
                self.add(leave, self.sink, [])
        for edge in graph.edges:
            self.add(ends[edge.source][1], ends[edge.target][0], [])

    @property
    def is_one_edge(self) -> bool:
        """Whether the network is fully reduced."""
        return self.after[self.source].keys() == {self.sink} and self.before[self.sink].keys() == {self.source}

    def tree(self) -> Series:
        """Return the tree on the one remaining edge."""
        return Series(tuple(self._line(self.after[self.source][self.sink])))

    def new_vertex(self) -> int:
        """Add a vertex without edges and return it."""
        self.after.append({})
        self.before.append({})
        return len(self.after) - 1

    def remove(self, source: int, target: int) -> None:
        """Remove an edge."""
        del self.after[source][target], self.before[target][source]

    def add(self, source: int, target: int, branches: Branches) -> None:
        """Add an edge. It is merged with an existing edge between the same vertices (the parallel reduction)."""
        both = _merged(self.after[source].get(target, []), branches)
        self.after[source][target] = self.before[target][source] = both

    def reduce(self) -> None:
        """Replace vertices with one edge in and one edge out by an edge (the series reduction), until none remains.

        Reduces every two-terminal series-parallel graph to one edge, in time near linear in its size.

        References:
            Valdes, Tarjan, Lawler: The recognition of series parallel digraphs. SIAM J. Comput. 11 (1982), section 3.
        """
        work = list(range(len(self.after)))
        while work:
            vertex = work.pop()
            if len(self.before[vertex]) == len(self.after[vertex]) == 1:
                ((source, head),) = self.before[vertex].items()
                ((target, tail),) = self.after[vertex].items()
                self.remove(source, vertex)
                self.remove(vertex, target)
                self.add(source, target, self.in_series([head, tail]))
                work += [source, target]

    def in_series(self, edges: Iterable[Branches]) -> Branches:
        """Return the branches of consecutive edges joined in series. Empty edges are skipped."""
        carried = [branches for branches in edges if branches]
        if len(carried) < 2:
            return carried[0] if carried else []
        line = self._line(carried[0])
        for branches in carried[1:]:
            line = _joined(line, self._line(branches))
        return [line]

    def order(self) -> list[int]:
        """Return the vertices that have edges, in a topological order from source to sink."""
        missing = [len(before) for before in self.before]
        order = [self.source]
        for vertex in order:
            for target in self.after[vertex]:
                missing[target] -= 1
                if not missing[target]:
                    order.append(target)
        return order

    def _line(self, branches: Branches) -> Parts:
        if len(branches) < 2:
            return branches[0] if branches else deque()
        series = sorted((Series(tuple(parts)) for parts in branches), key=self._first)
        return deque([Parallel(tuple(series))])

    def _first(self, series: Series) -> int:
        part = series.parts[0]
        while isinstance(part, Parallel):
            part = part.branches[0].parts[0]
        return self._rank[part.op]


def _merged(some: Branches, others: Branches) -> Branches:
    small, large = sorted((some, others), key=len)
    large.extend(small)
    return large


def _joined(head: Parts, tail: Parts) -> Parts:
    # The shorter side moves, so that a long chain costs n log n.
    if len(head) >= len(tail):
        head.extend(tail)
        return head
    tail.extendleft(reversed(head))
    return tail
