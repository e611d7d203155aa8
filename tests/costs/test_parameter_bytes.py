"""The bytes of parameters by hand. `a`, `b` and `d` share a parameter of 10 bytes; that of `c` is frozen."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from problems import cluster, table

from graphpipe.costs import CostModel, State
from graphpipe.costs.parameter_bytes import ParameterBytes
from graphpipe.graph import Graph, Op, Shared

FACTOR = 5.0
"""Weights, gradients and three bytes of optimizer state."""


def parameter_bytes(*, shared: Sequence[str] = "abd", trains: bool = True, loose: bool = True) -> ParameterBytes:
    sizes = {"a": 11.0, "b": 110.0, "c": 1000.0, "d": 10.0, "e": 20_000.0}
    ops = tuple(
        Op(name=name, parameters=("tied",) if name in shared else (), parameter_bytes=size, trainable=name != "c")
        for name, size in sizes.items()
    )
    known = (Shared(name="tied", bytes=10.0, trainable=loose),) if shared else ()
    graph = Graph(name="five", ops=ops, edges=(), shared=known)
    costs = replace(table(graph, dict.fromkeys(sizes, (0.0, 1.0))), state_bytes_per_parameter_byte=FACTOR)
    return CostModel(graph, costs, cluster(1), trains).parameter_bytes


def test_a_shared_parameter_counts_once_in_a_stage() -> None:
    found = parameter_bytes()
    assert [found.repeated(ops) for ops in ("ac", "ab", "abd")] == [0, 10, 20]
    assert [found.weights(ops) for ops in ("ac", "ab", "abcd")] == [1011, 111, 1111]
    assert [found.gradients(ops) for ops in ("ac", "ab", "abcd")] == [11, 111, 111]
    assert [found.gradients(ops, without=("tied",)) for ops in ("c", "ac", "ab", "e")] == [0, 1, 101, 20_000]
    assert found.state("abc") == 5 * 111 + 1000


def test_only_what_other_stages_hold_too_is_tied() -> None:
    found = parameter_bytes()
    assert [found.tied(ops) for ops in ("c", "a", "ab", "abd", "abcde")] == [0, 10, 10, 0, 0]
    assert parameter_bytes(shared="").tied("ab") == 0


def test_inference_has_weights_only() -> None:
    found = parameter_bytes(trains=False)
    assert (found.gradients("abce"), found.state("ae"), found.state("ab")) == (0, 20_011, 111)


@pytest.mark.parametrize(
    ("ops", "state", "degree", "held", "updated"),
    [
        ("ace", "whole", 2, 5 * 20_011 + 1000, 20_011),
        ("ace", "optimizer", 1, 5 * 20_011 + 1000, 20_011),
        ("ace", "all", 1, 5 * 20_011 + 1000, 20_011),
        # a is 1 beside the 10 that b and d hold too, which is not shared out; the fullest of two replicas keeps e.
        ("ace", "optimizer", 2, 5 * 20_011 + 1000 - 3 * 1, 10 + 20_000),
        # b is 100 then, and the replica that does not keep e keeps both others.
        ("abce", "optimizer", 2, 5 * 20_111 + 1000 - 3 * 101, 10 + 20_000),
        # No other stage holds the shared parameter: it counts at a, so b is 100 and d is 0.
        ("abd", "optimizer", 2, 5 * 111 - 3 * 11, 100),
        # Twice the weights, a quarter of weights and optimizer state; all of the tied parameter.
        ("ace", "all", 4, 2 * 21_001 + (21_001 + 3 * 20_001) / 4 + 5 * 10, 10 + 20_001 / 4),
        ("ace", "all", 3, 2 * 21_001 + (21_001 + 3 * 20_001) / 3 + 5 * 10, 10 + 20_001 / 3),
        # Four times the largest operator, and a quarter of weights, gradients and optimizer state.
        ("ace", "layers", 4, 4 * 20_000 + (21_001 + 4 * 20_001) / 4 + 5 * 10, 10 + 20_001 / 4),
        ("ace", "layers", 1, 5 * 20_011 + 1000, 20_011),
    ],
)
def test_what_the_fullest_replica_holds_and_updates(
    ops: str, state: State, degree: int, held: float, updated: float
) -> None:
    found = parameter_bytes()
    assert found.held(ops, state, degree) == pytest.approx(held, rel=1e-12)
    assert found.updated(ops, state, degree) == pytest.approx(updated, rel=1e-12)


def test_the_next_largest_goes_to_the_replica_with_the_fewest_bytes() -> None:
    assert parameter_bytes(shared="").largest_share("abde", 2) == 20_000
    assert parameter_bytes(shared="").largest_share("abd", 2) == 110
    assert parameter_bytes(shared="").largest_share("abd", 1) == 131
