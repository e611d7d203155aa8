"""Piper: the published figures on BERT, and the planner compared with every sequence of convex stages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baseline_oracles import Block, Pipeline, all_reduce, best, busy_problem, compute, moved, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import towers
from published_piper import Instance, TensorShare, piper

from graphpipe.errors import Infeasible
from graphpipe.graph import Graph, Op
from graphpipe.planners.baselines.downsets import Downsets, closed_sets
from graphpipe.planners.baselines.piper import plan_piper
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans.verify import verify

DATA = Path(__file__).parents[4] / "shared" / "data" / "piper" / "bert32a100.json"


def slowest(problem: Problem, micro_batch: int, pipeline: Pipeline) -> float:
    every = set(problem.graph.order)
    found = 0.0
    for ops, degree, recompute in pipeline:
        transfers = moved(problem, every - set(ops), set(ops)) + moved(problem, set(ops), every - set(ops))
        reduced = all_reduce(problem, ops, degree) / problem.batch_size
        found = max(found, compute(problem, micro_batch, ops, degree, recompute) + reduced + transfers / degree)
    return found


def bert(devices: int, micro_batches: int) -> Instance:
    body = json.loads(DATA.read_text())
    ids = [node["id"] for node in body["nodes"]]
    ends = [(edge["sourceId"], edge["destId"]) for edge in body["edges"]]

    def share(tensor: str) -> TensorShare:
        nodes: dict[int, list[dict[str, Any]]] = {node["id"]: node["TMPCs"][tensor] for node in body["nodes"]}

        def of(field: str) -> np.ndarray[Any, np.dtype[np.float64]]:
            return np.array([[variant[field] for variant in nodes[node]] for node in ids])

        return TensorShare(
            seconds=of("timePerSample"),
            bytes_per_micro_batch=of("memoryUsageA"),
            fixed_bytes=of("memoryUsageB"),
            parameter_bytes=of("parameterSize")[:, 0],
            received_bytes=np.array([nodes[target][0]["syncTimeFw"][str(source)] for source, target in ends]),
            sent_bytes=np.array([nodes[source][0]["syncTimeBw"][str(target)] for source, target in ends]),
        )

    return Instance(
        edges=[(ids.index(source), ids.index(target)) for source, target in ends],
        edge_bytes=np.array([edge["communicationCost"] for edge in body["edges"]]),
        shares={int(tensor): share(tensor) for tensor in body["nodes"][0]["TMPCs"]},
        devices=devices,
        memory_bytes=8 * 2.0**30,
        bytes_per_second=25 * 2.0**30,
        micro_batches=micro_batches,
    )


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")
@pytest.mark.parametrize(
    ("devices", "batch", "seconds"), [(64, 512, 0.0209573), pytest.param(512, 1920, 0.00256113, marks=pytest.mark.slow)]
)
def test_bert_as_published(devices: int, batch: int, seconds: float) -> None:
    found = piper(bert(devices, batch))
    assert max(cut.seconds for cut in found) == pytest.approx(seconds, rel=2.5e-6)
    assert sum(cut.devices for cut in found) == {64: 64, 512: 510}[devices]


def line(memory_bytes: float) -> Instance:
    """Two nodes of 4 s, or 6 s keeping 1 byte instead of 3 per micro-batch in flight."""
    share = TensorShare(
        seconds=np.array([[4.0, 6.0]] * 2),
        bytes_per_micro_batch=np.array([[3.0, 1.0]] * 2),
        fixed_bytes=np.zeros((2, 2)),
        parameter_bytes=np.zeros(2),
        received_bytes=np.zeros(1),
        sent_bytes=np.zeros(1),
    )
    edge = np.array([0.0])
    return Instance(
        edges=[(0, 1)], edge_bytes=edge, shares={1: share}, devices=2, memory_bytes=memory_bytes,
        bytes_per_second=1.0, micro_batches=4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("memory_bytes", "seconds"),
    [
        (6.0, 4.0),  # 2 x 3 bytes in the first stage, 3 in the second, without recomputation
        (5.0, 5.0),  # both nodes on two devices, 3 + 1 bytes: one of them recomputes, (4 + 6) / 2
        (2.0, 6.0),  # only recomputing fits
        (1.0, None),
    ],
)
def test_recomputation_is_chosen_if_memory_is_short(memory_bytes: float, seconds: float | None) -> None:
    found = piper(line(memory_bytes))
    assert (max(cut.seconds for cut in found) if found else None) == seconds


@given(seed=st.integers(0, 10**9), micro_batch=st.sampled_from([1, 2, 4]), tight=st.booleans())
@settings(max_examples=15, deadline=None)
@pytest.mark.slow
def test_the_planner_is_optimal_over_all_sequences(seed: int, micro_batch: int, tight: bool) -> None:
    problem = busy_problem(seed, most_ops=5, tight=tight)
    found, plan = planned("piper", problem, micro_batch, slowest)
    assert found == pytest.approx(best(problem, micro_batch, slowest, chain=False, recompute="each"), rel=1e-9)
    if plan:
        verify(plan)


def test_a_wide_graph_has_too_many_downsets() -> None:
    with pytest.raises(Infeasible, match=r"too many downsets \(N > 40,000\)"):
        plan_piper(towers([16] * 4, 4, 4), Options())


def test_downsets_by_hand() -> None:
    # 0 -> 1, 0 -> 2: the sets that contain all successors are {}, {1}, {2}, {1, 2}, {0, 1, 2}.
    assert closed_sets([0b110, 0, 0]) == [0, 0b010, 0b100, 0b110, 0b111]
    graph = towers([2, 1], 1, 1).graph  # 3 of the first branch's suffixes x 2 of the second's, and the empty set
    downsets = Downsets.of(graph)
    assert len(downsets) == 7
    assert list(downsets.below(3)) == [at for at in range(3) if not (downsets.members[at] & ~downsets.members[3]).any()]


@given(order=st.permutations(range(6)))
@settings(max_examples=10, deadline=None)
def test_the_order_in_which_operators_are_listed_does_not_matter(order: list[int]) -> None:
    problem = towers([2, 3], 4, 8, parameter_bytes=1e8)
    ops: tuple[Op, ...] = tuple(problem.graph.ops[at] for at in order)
    graph = Graph(name="towers", ops=ops, edges=problem.graph.edges)
    costs = type(problem.costs)(graph_fingerprint=graph.fingerprint, rows=problem.costs.rows)
    again = Problem(graph, costs, problem.cluster, problem.batch_size)
    assert planned("piper", again, 2, slowest)[0] == pytest.approx(planned("piper", problem, 2, slowest)[0], rel=1e-9)


def test_every_branch_may_give_a_piece_to_a_stage() -> None:
    # A chain cannot cut two branches of three layers in half: b0.0 b0.1 b0.2 | b1.0 b1.1 b1.2; it does not need to.
    problem = towers([3, 3], 2, 8, parameter_bytes=1e9)
    piper_seconds, _ = planned("piper", problem, 2, slowest)
    chain = PLANNERS["pipedream"].plan(problem, Options(micro_batch=2))
    assert piper_seconds <= slowest(problem, 2, [Block(stage.ops, stage.degree) for stage in chain.stages]) * (1 + 1e-9)
