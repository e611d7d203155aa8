"""The whole-batch tail: operators that need the whole mini-batch at once, and all operators after them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.graph import Graph
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


def own_stages(plan: Plan) -> list[Stage]:
    """Return the stages outside the whole-batch tail, whose stages may always share devices."""
    return [stage for stage in plan.stages if not plan.graph.whole_batch_tail.issuperset(stage.ops)]


def most_stages_per_device(plan: Plan) -> int:
    """Return how many stages outside the whole-batch tail the fullest device hosts."""
    return max(Counter(device for stage in own_stages(plan) for device in stage.devices).values(), default=0)


@dataclass(frozen=True, slots=True)
class WholeBatchTail:
    """The whole-batch operators and all after them, which run once per mini-batch, and the graph before them."""

    before: Graph | None
    """The graph before the tail; None if the tail is the whole graph."""
    ops: tuple[str, ...]
    """The operators of the tail; empty if the model does not have a whole-batch operator."""

    @staticmethod
    def of(graph: Graph) -> "WholeBatchTail":
        """Return the tail of a graph. Operators after a whole-batch operator can only start when it has ended."""
        inside = graph.whole_batch_tail
        if not inside:
            return WholeBatchTail(graph, ())
        ops = tuple(op for op in graph.ops if op.name not in inside)
        edges = tuple(edge for edge in graph.edges if edge.target not in inside)
        before = Graph(name=graph.name, ops=ops, edges=edges) if ops else None
        return WholeBatchTail(before, tuple(name for name in graph.order if name in inside))

    def part(self, problem: Problem) -> Part:
        """Return the single stage of the tail."""
        return Part(self.ops, 1, problem.batch_size, recompute=problem.recompute)

    def hosts(self, problem: Problem, parts: Sequence[Part]) -> list[int]:
        """Return the stages that feed the tail, because only their devices may host it too."""
        inside = set(self.ops)
        feeding = {edge.source for edge in problem.graph.edges if edge.target in inside}
        return [position for position, part in enumerate(parts) if feeding.intersection(part.ops)]
