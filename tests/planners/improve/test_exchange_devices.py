"""What exchanges of devices compare."""

import pytest
from problems import table
from unequal_links import SLOW, linked

from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.improve.exchange_devices import transfer_seconds
from graphpipe.planners.problem.partition import Part, Problem, assemble


def test_transfers_by_hand() -> None:
    """A ring of d devices once counted as 1 instead of 2 (d - 1) / d times the gradients, and messages one way only."""
    graph = Graph(
        name="pair",
        ops=(Op(name="a", parameter_bytes=3e6), Op(name="b")),
        edges=(Edge(source="a", target="b", bytes_per_sample=1e6),),
    )
    problem = Problem(graph, table(graph, dict.fromkeys("ab", (0.0, 1.0))), linked("abcd", {}, intra=SLOW), 12)
    plan = assemble(problem, [Part(("a",), 3, 6), Part(("b",), 1, 6)], planner="test")
    # 12 samples of 1 MB there and back over 1 GB/s, and 4/3 of 3 MB around the ring.
    assert transfer_seconds(plan) == pytest.approx(2 * 12e-3 + 4e-3)
