"""The bytes of operators by hand. `a`, `b` and `d` share a parameter of 10 bytes; that of `c` is frozen."""

from dataclasses import replace

import pytest
from problems import KIND, cluster, table

from graphpipe.costs import CostModel, Curve, State, Temporaries
from graphpipe.costs.op_bytes import OpBytes
from graphpipe.costs.sample_load import declare_loads
from graphpipe.graph import Edge, Graph, Op, Shared, Work

SIZES = {"a": 11.0, "b": 110.0, "c": 1000.0, "d": 10.0, "e": 20_000.0}
FACTOR = 5.0
"""Weights, gradients and three bytes of optimizer state."""


def model(*, trains: bool = True, factor: float = FACTOR, other: bool = False, load: float = 1.0) -> CostModel:
    ops = tuple(
        Op(
            name=name,
            parameters=("tied",) if name in "abd" else (),
            parameter_bytes=size,
            trainable=name != "c",
            work=Work(saved_bytes_per_sample=size / 2, saved_bytes_per_forward=3.0 if name == "b" else 0.0),
        )
        for name, size in SIZES.items()
    )
    edges = [("a", "b", 5.0), ("a", "c", 7.0), ("b", "d", 50.0), ("c", "d", 500.0), ("d", "e", 1.0)]
    graph = Graph(
        name="five",
        ops=ops,
        edges=tuple(Edge(source=s, target=t, bytes_per_sample=count) for s, t, count in edges),
        shared=(Shared(name="tied", bytes=10.0),),
    )
    costs = replace(table(graph, dict.fromkeys(SIZES, (0.0, 1.0))), state_bytes_per_parameter_byte=factor)
    held = [
        Temporaries(forward=line(4.0, 1.0), backward=line(20.0, 2.0)),
        Temporaries(forward=line(9.0, 1.0), backward=line(1.0, 8.0)),
    ]
    rows = [replace(row, temporaries=held[0]) for row in costs.rows]
    devices = cluster(2)
    if other:
        rows += [replace(row, device_type="other", temporaries=held[1]) for row in costs.rows]
        kinds = (*devices.device_types, replace(KIND, name="other"))
        devices = replace(
            devices, device_types=kinds, devices=(devices.devices[0], replace(devices.devices[1], type="other"))
        )
    loads = declare_loads(graph, {"b": [1.0, load]}) if load != 1 else ()
    return CostModel(graph, replace(costs, rows=tuple(rows), loads=loads), devices, trains)


def line(fixed: float, slope: float) -> Curve:
    return Curve(lines=((fixed, slope),))


def found(**changes: float) -> OpBytes:
    return model(**changes).op_bytes  # pyright: ignore[reportArgumentType]


def test_parameters_gradients_and_state() -> None:
    each = found()
    assert each.parameters.tolist() == [11, 110, 1000, 10, 20_000]
    assert each.trainable.tolist() == [11, 110, 0, 10, 20_000]
    assert each.state.tolist() == [55, 550, 1000, 50, 100_000]
    # The shared parameter counts at its first holder.
    assert each.least_trainable.tolist() == [11, 100, 0, 0, 20_000]
    assert each.least_state.tolist() == [55, 500, 1000, 0, 100_000]
    without = found(trains=False)
    assert without.trainable.tolist() == without.least_trainable.tolist() == [0] * 5
    assert without.state.tolist() == without.least_state.tolist() == each.parameters.tolist()


def test_what_replicas_hold_if_they_share_out_every_operator() -> None:
    each = found()
    assert [found(factor=factor).slots_per_byte for factor in (5.0, 2.0, 1.0)] == [3, 0, 0]
    assert each.held("whole", 4) is each.held("all", 1) is each.held("optimizer", 1) is each.state
    # Three quarters of the optimizer state, which is three times the trainable bytes, are on other replicas.
    assert each.held("optimizer", 4).tolist() == [55 - 24.75, 550 - 247.5, 1000, 50 - 22.5, 100_000 - 45_000]
    # Weights and gradients, and a quarter of weights and optimizer state.
    assert each.held("all", 4).tolist() == [33, 330, 2250, 30, 60_000]
    # A quarter of everything.
    assert each.held("layers", 4).tolist() == [13.75, 137.5, 250, 12.5, 25_000]
    assert each.held("all", 3).tolist() == pytest.approx(
        [22 + 44 / 3, 220 + 440 / 3, 2000 + 1000 / 3, 20 + 40 / 3, 200_000 / 3]
    )
    assert each.least_held(4).tolist() == [55 - 24.75, 500 - 225, 1000, 0, 100_000 - 45_000]


@pytest.mark.parametrize("state", ["whole", "optimizer", "all"])
def test_the_least_is_at_most_what_a_stage_holds(state: State) -> None:
    costs = model()
    for ops in ("a", "ab", "abd", "ce", "abcde"):
        at = costs.positions(ops)
        assert costs.op_bytes.least_held(2)[at].sum() <= costs.parameter_bytes.held(ops, state, 2) + 1e-9


def test_an_operator_saves_for_its_largest_load_and_each_forward_once() -> None:
    each = found(load=4.0)
    assert each.largest_load == {"a": 1, "b": 4, "c": 1, "d": 1, "e": 1}
    assert each.saved.tolist() == [5.5, 220, 500, 5, 10_000]
    assert each.saved_by_forward.tolist() == [0, 3, 0, 0, 0]
    assert each.saved_of(6.0).tolist() == [5.5, 220.5, 500, 5, 10_000]
    assert found(trains=False).saved.tolist() == found(trains=False).saved_by_forward.tolist() == [0] * 5


def test_an_operator_holds_the_most_on_any_device_type_with_the_gradient_that_arrives() -> None:
    # a's output is read by b and c, 5 and 7 bytes of it: one gradient of 7 bytes a sample arrives.
    assert found().returned_gradient == {"a": 7, "b": 50, "c": 500, "d": 1, "e": 0}
    assert found().temporary(2).tolist() == [20 + 4 + 14, 20 + 4 + 100, 20 + 4 + 1000, 20 + 4 + 2, 20 + 4]
    assert found(load=4.0).temporary(2).tolist()[1] == 20 + 2 * 8 + 100  # the gradient has the size of the graph
    # The other type holds 1 + 8 n beside the gradient: more from 4 samples on.
    assert found(other=True).temporary(2).tolist()[4] == 24
    assert found(other=True).temporary(5).tolist()[4] == 41
    assert found(trains=False).temporary(2).tolist() == [6] * 5
    assert found(trains=False, other=True).temporary(2).tolist() == [11] * 5
    assert found().has_temporaries
    assert found(other=True).device_types == ("gpu", "other")


def test_a_sum_is_computed_once_for_each_key() -> None:
    each, asked = found(), list[int]()

    def compute() -> float:
        asked.append(1)
        return 0.0

    assert [each.once(key, compute) for key in (("a", 1), ("a", 1), ("a", 2))] == [0.0, 0.0, 0.0]
    assert len(asked) == 2
