"""The costs of each of the devices that share a replica, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from shared_replicas import chain, cluster, layer, shards, table

from graphpipe.cluster.ring import Ring
from graphpipe.costs import CostModel, CostTable, Temporaries, estimate
from graphpipe.costs.op_cost import Curve, Halves
from graphpipe.costs.ranks.rank_costs import rank_costs
from graphpipe.errors import InvalidInput
from graphpipe.graph import Exchanges, Graph, Op, SequenceShards, Shared

GRAPH = chain(layer("a", shards()), layer("b", None), layer("c", shards(forward=0)))
MODEL = CostModel(GRAPH, table(GRAPH), cluster(8))


def line(curve: Curve) -> tuple[float, float]:
    (only,) = curve.lines
    return only


@pytest.mark.parametrize(
    ("ranks", "forward", "weights"),
    [
        # The shared 8 of 10 FLOPs are divided, the fixed second is not. Two all-reduces have 2(t-1) messages of 3 s
        # each. 40 bytes per sample pass in 2(t-1) parts of 1/t at 4 bytes per second.
        (2, (1 + 2 * 2 * 3, 10 * 0.6 + 2 * 40 / 2 / 4), (1, 10 * 0.6)),
        (4, (1 + 2 * 6 * 3, 10 * 0.4 + 6 * 40 / 4 / 4), (1, 10 * 0.4)),
    ],
)
def test_ranks_divide_what_they_share_and_add_their_all_reduces(
    ranks: int, forward: tuple[float, float], weights: tuple[float, float]
):
    rank = rank_costs(MODEL, (tuple(range(ranks)),))
    first = rank.table.by_op["a", "gpu"]
    assert line(first.forward) == pytest.approx(forward)
    assert line(first.weight_gradient) == pytest.approx(weights)
    assert first.input_gradient == Curve(), "nothing before it trains, so no gradient of values is summed"
    assert rank.task_seconds(("a",), 0, 3).forward == pytest.approx(forward[0] + 3 * forward[1])


def test_the_backward_sums_gradients_of_values_where_there_are_any() -> None:
    graph = chain(layer("b", None), layer("a", shards()))
    rank = rank_costs(CostModel(graph, table(graph), cluster(8)), ((0, 1),))
    assert line(rank.table.by_op["a", "gpu"].input_gradient) == pytest.approx((1 + 2 * 3, 6 + 2 * 20 / 2 / 4))


def test_gradients_of_parameters_of_which_ranks_see_parts_take_as_long_for_any_samples() -> None:
    layout = shards()
    summed = Exchanges(reductions=2, bytes=16)
    graph = chain(layer("b", None), layer("a", replace(layout, figures=replace(layout.figures, weights=summed))))
    rank = rank_costs(CostModel(graph, table(graph), cluster(8)), ((0, 1),))
    assert line(rank.table.by_op["a", "gpu"].weight_gradient) == (1 + 2 * 2 * 3 + 2 * 16 / 2 / 4, 6)


def divided(name: str, taken: str = "") -> Op:
    """Return a layer that returns shards of the sequence and, if it reads a value, takes shards of it."""
    layout = shards()
    sequence = SequenceShards(
        most=8,
        submodules=(),
        figures=layout.figures,
        returned=("",),
        taken=((taken, ""),) if taken else (),
        summed_bytes=8.0,
        used=True,
    )
    return layer(name, replace(layout, sequence=sequence))


SEQUENCE = chain(divided("a"), divided("b", "a"), layer("c", shards()), divided("d", "c"), sent=8)
UNDIVIDED = replace(
    SEQUENCE, ops=tuple(replace(op, shards=op.shards and replace(op.shards, sequence=None)) for op in SEQUENCE.ops)
)


@pytest.mark.parametrize(
    ("ops", "forward", "backward"),
    [
        (("a", "b", "c", "d"), 1, 1),  # c reads the value of b whole, and d takes shards of that of c
        (("a",), 1, 0),
        (("b",), 1, 1),
        (("a", "b"), 1, 0),
        (("c",), 0, 0),  # what it reads was gathered before, and it returns a whole value
        (("d",), 0, 1),
    ],
)
def test_values_of_the_sequence_are_gathered_where_they_are_read_whole(
    ops: tuple[str, ...], forward: int, backward: int
) -> None:
    # A gather between two devices is one message of 3 s, and of half of the 8 bytes of a sample at 4 bytes per second.
    rank = rank_costs(CostModel(SEQUENCE, table(SEQUENCE), cluster(8)), ((0, 1),))
    assert rank.end_seconds(ops, 5) == (forward * (3 + 5 * 4 / 4), backward * (3 + 5 * 4 / 4))
    plain = rank_costs(CostModel(UNDIVIDED, table(SEQUENCE), cluster(8)), ((0, 1),))
    tasks = [costs.task_seconds(ops, 0, 5) for costs in (rank, plain)]
    assert tasks[0].forward - tasks[1].forward == forward * 8
    assert tasks[0].backward - tasks[1].backward == backward * 8
    again = [costs.task_seconds(ops, 0, 5, "full").backward for costs in (rank, plain)]
    assert again[0] - again[1] == (forward + backward) * 8  # it gathers them again


def test_gradients_of_positions_are_summed_once_in_a_mini_batch() -> None:
    rank = rank_costs(CostModel(SEQUENCE, table(SEQUENCE), cluster(8)), ((0, 1),))
    weights = 4 * (100 - 80 / 2)
    assert rank.optimizer_seconds(("a", "b", "c", "d")) == weights + 2 * (3 + 3 * 8 / 2 / 4)


def test_an_operator_without_a_layout_runs_whole_on_every_rank() -> None:
    rank = rank_costs(MODEL, ((0, 1),))
    assert rank.table.by_op["b", "gpu"] == MODEL.table.by_op["b", "gpu"]
    assert rank.graph["b"] == GRAPH["b"]


def test_one_device_per_replica_has_the_costs_themselves() -> None:
    assert rank_costs(MODEL, ((0,), (5,))) is MODEL


def test_the_slowest_ring_counts_for_every_replica() -> None:
    near, far = rank_costs(MODEL, ((0, 1), (2, 3))), rank_costs(MODEL, ((0, 1), (3, 4)))
    assert near.task_seconds(("a",), 0, 1).forward == 1 + 12 + 6 + 10
    assert far.task_seconds(("a",), 0, 1).forward == 1 + 2 * 2 * 5 + 6 + 2 * 40 / 2 / 1
    assert rank_costs(MODEL, ((2, 3),)) is near, "the costs are made once for equal rings"


def test_bytes_are_divided_as_far_as_the_layout_says() -> None:
    rank = rank_costs(MODEL, ((0, 1, 2, 3),))
    memory = rank.stage_memory(("a", "b"), 1)
    assert memory.state == 4 * (20 + 80 / 4 + 100)  # weights, gradients and two slots of the optimizer
    assert memory.saved == (10 + 10 / 4) + 20
    assert rank.stage_memory(("b",), 1).received == 4, "each rank receives whole values"
    assert rank.optimizer_seconds(("a", "b")) == 20 + 80 / 4 + 100


def test_an_estimate_divides_the_line_that_memory_bounds_by_traffic() -> None:
    layout = shards()
    op = layer("a", replace(layout, figures=replace(layout.figures, traffic_bytes_per_sample=3.0)))
    graph = chain(replace(op, work=replace(op.work, traffic_bytes_per_sample=6.0)))
    model = CostModel(graph, estimate(graph, cluster(2)), cluster(2))
    whole, rank = (costs.table.by_op["a", "gpu"].forward.lines for costs in (model, rank_costs(model, ((0, 1),))))
    assert [slope for _, slope in whole] == [10.0, 6.0]
    assert [slope - 2 * 40 / 2 / 4 for _, slope in rank] == pytest.approx([6.0, 4.5])


def test_measured_halves_and_temporaries_follow() -> None:
    graph = chain(layer("b", None), layer("a", shards()))
    held = Temporaries(forward=Curve(lines=((0.0, 40.0),)), backward=Curve(lines=((100.0, 60.0),)))
    halves = Halves(input=Curve(lines=((2.0, 20.0),)), weight=Curve(lines=((3.0, 30.0),)))
    costs = table(graph)
    costs = replace(costs, rows=(costs.rows[0], replace(costs.rows[1], halves=halves, temporaries=held)))
    row = rank_costs(CostModel(graph, costs, cluster(4)), ((0, 1),)).table.by_op["a", "gpu"]
    assert row.halves is not None
    assert row.temporaries is not None
    assert line(row.halves.input) == pytest.approx((2 + 6, 12 + 5))
    assert line(row.halves.weight) == pytest.approx((3, 18))
    assert line(row.temporaries.forward) == (0, 40 * 15 / 20), "as much less as it saves"
    assert line(row.temporaries.backward) == (60, 60 * 15 / 20), "the gradients are as much smaller as the weights"


def _measured_at_two() -> CostModel:
    # Each of two devices takes 2 + 7 n seconds, and holds 30 n bytes while it runs.
    graph = chain(layer("b", None), layer("a", shards()))
    curve, held = Curve(lines=((2.0, 7.0),)), Curve(lines=((0.0, 30.0),))
    costs = table(graph)
    at_two = replace(
        costs.rows[1],
        ranks=2,
        forward=curve,
        input_gradient=curve,
        weight_gradient=curve,
        temporaries=Temporaries(forward=held, backward=held),
    )
    return CostModel(graph, replace(costs, rows=(costs.rows[0], replace(costs.rows[1], shared=(at_two,)))), cluster(8))


def test_measured_costs_of_two_devices_stand_in_place_of_computed_ones() -> None:
    row = rank_costs(_measured_at_two(), ((0, 1),)).table.by_op["a", "gpu"]
    assert line(row.forward) == pytest.approx((2 + 2 * 2 * 3, 7 + 2 * 40 / 2 / 4)), "only the sums are added"
    assert line(row.weight_gradient) == (2, 7)
    assert row.temporaries is not None
    assert line(row.temporaries.forward) == (0, 30)


def test_costs_of_more_devices_follow_from_the_most_that_were_measured() -> None:
    """Of 10 FLOPs, each of two devices computes 6, and each of four 4. Each of these saves 12.5 of 20 bytes, not 15."""
    row = rank_costs(_measured_at_two(), ((0, 1, 2, 3),)).table.by_op["a", "gpu"]
    assert line(row.weight_gradient) == pytest.approx((2, 7 * 4 / 6))
    assert row.temporaries is not None
    assert line(row.temporaries.forward) == pytest.approx((0, 30 * 12.5 / 15))
    assert (row.ranks, row.shared) == (None, ())


def test_one_device_per_replica_does_not_use_measured_costs_of_two() -> None:
    model = _measured_at_two()
    assert model.task_seconds(("a",), 0, 1) == CostModel(model.graph, table(model.graph), cluster(8)).task_seconds(
        ("a",), 0, 1
    )


def test_slower_devices_are_slower_at_every_number_of_them() -> None:
    row = _measured_at_two().table.by_op["a", "gpu"].times(3)
    assert row.shared[0].forward == Curve(lines=((6.0, 21.0),))


@pytest.mark.parametrize("degrees", [(1,), (4, 2), (2, 2)])
def test_measured_numbers_of_devices_ascend_from_two(degrees: tuple[int, ...]):
    costs = table(GRAPH)
    row = replace(costs.rows[0], shared=tuple(replace(costs.rows[0], ranks=ranks) for ranks in degrees))
    with pytest.raises(InvalidInput, match=r"cost of op a on gpu, shared: are of \[.*must be of 2 or more each"):
        replace(costs, rows=(row, *costs.rows[1:]))


def test_a_cost_file_keeps_measured_numbers_of_devices(tmp_path: Path) -> None:
    costs = _measured_at_two().table
    costs.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == costs
    plain = replace(costs, rows=tuple(replace(row, shared=()) for row in costs.rows))
    assert plain.fingerprint == table(_measured_at_two().graph).fingerprint != costs.fingerprint


@pytest.mark.parametrize(("everywhere", "held"), [(True, 20 + 80 / 2), (False, 100)])
def test_a_tied_parameter_is_divided_only_if_all_its_operators_divide_it(everywhere: bool, held: float):
    tied = layer("b", shards() if everywhere else None, weight="a.weight")
    graph = replace(chain(layer("a", shards()), tied), shared=(Shared(name="a.weight", bytes=80),))
    rank = rank_costs(CostModel(graph, table(graph), cluster(2)), ((0, 1),))
    assert rank.graph["a"].parameter_bytes == held
    assert rank.graph.shared[0].bytes == (40 if everywhere else 80)
    assert rank.parameter_bytes.weights(("a", "b")) == (20 + 20 + 40 if everywhere else 20 + 100)


def test_the_work_of_messages_counts_where_devices_handle_them() -> None:
    link = replace(cluster(2).intra_node, processor_seconds=7.0, processor_seconds_per_byte=1.0)
    ring = Ring(link, 2)
    fixed, slope = ring.reduce_line(2, 40)
    assert fixed == 2 * 2 * (3 + 2 * 7)
    assert slope == 2 * 20 * (1 / 4 + 2 * 1)
    assert fixed + slope == 2 * (ring.reduce_seconds(20) + ring.reduce_work_seconds(20))
    assert Ring(None, 1).reduce_line(2, 40) == (0.0, 0.0)


def test_fingerprints_do_not_depend_on_layouts() -> None:
    plain = Graph(name="g", ops=(Op(name="a"),), edges=())
    shared_out = replace(plain, ops=(Op(name="a", shards=shards()),))
    assert plain.fingerprint == shared_out.fingerprint
