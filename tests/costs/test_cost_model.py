"""The cost look-up: costs 1, 10, 100, ... so that the digits of each sum show its terms."""

from dataclasses import replace

import numpy as np
import pytest

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostModel, CostTable, Curve, OpCost, Recompute, regions
from graphpipe.costs.op_cost import Halves
from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, Shared, Work


def op(name: str, saved: float, parameters: float, *, trainable: bool = True) -> Op:
    work = Work(saved_bytes_per_sample=saved)
    return Op(name=name, parameter_bytes=parameters, work=work, trainable=trainable)


GRAPH = Graph(
    name="g",
    ops=(op("a", 1, 10), op("b", 10, 100), op("c", 100, 1000, trainable=False), op("d", 1000, 0)),
    edges=tuple(
        Edge(source=source, target=target, bytes_per_sample=count)
        for source, target, count in (("a", "b", 5), ("a", "c", 7), ("b", "d", 50), ("c", "d", 500))
    ),
)


def device_type(name: str) -> DeviceType:
    return DeviceType(
        name=name,
        memory_bytes=1,
        peak_flops_per_second=1,
        memory_bytes_per_second=1,
        launch_seconds=0,
        half_peak_flops=0,
    )


CLUSTER = Cluster(
    name="c",
    device_types=(device_type("slow"), device_type("fast")),
    devices=tuple(Device(name=f"d{at}", type="slow" if at else "fast", node=f"n{at // 2}") for at in range(4)),
    intra_node=Link(latency_seconds=1, bandwidth_bytes_per_second=100),
    inter_node=Link(latency_seconds=2, bandwidth_bytes_per_second=10),
)


def line(fixed: float, slope: float) -> Curve:
    return Curve(lines=((fixed, slope),))


TABLE = CostTable(
    graph_fingerprint=GRAPH.fingerprint,
    rows=tuple(
        OpCost(
            op=name,
            device_type=kind,
            forward=line(0, scale * speed),
            input_gradient=line(0, 2 * scale * speed),
            weight_gradient=line(3 * scale * speed, 0),
            source="analytic",
        )
        for kind, speed in (("slow", 1.0), ("fast", 0.5))
        for name, scale in (("a", 1.0), ("b", 10.0), ("c", 100.0), ("d", 1000.0))
    ),
    state_bytes_per_parameter_byte=4,
    optimizer_seconds_per_parameter_byte=0.25,
    task_overhead_seconds=0.125,
)
MODEL = CostModel(GRAPH, TABLE, CLUSTER)


def test_task_seconds_sum_the_operators_at_the_samples_of_one_device() -> None:
    slow = MODEL.task_seconds(("a", "c"), 1, 2)
    assert (slow.forward, slow.input_gradient, slow.weight_gradient) == (202.125, 404.125, 303)
    assert slow.backward == 404.125 + 303
    assert MODEL.task_seconds(("a", "c"), 0, 2).forward == 101.125


def test_transfers_go_over_the_link_between_the_devices() -> None:
    assert MODEL.transfer_seconds(200, 0, 1) == 3
    assert MODEL.transfer_seconds(200, 1, 2) == 22
    assert MODEL.transfer_seconds(200, 3, 3) == 0
    assert MODEL.transfer_seconds(0, 1, 2) == 0


def test_groups_of_devices_are_as_slow_or_as_fast_as_one_pair() -> None:
    assert MODEL.slowest_transfer_seconds(200, (0, 1), (1, 2)) == 22
    assert MODEL.fastest_transfer_seconds(200, (0, 1), (1, 2)) == 0
    assert MODEL.fastest_transfer_seconds(200, (0,), (1, 2)) == 3


def test_a_message_costs_both_devices_work_and_a_copy_to_the_node_takes_its_bandwidth() -> None:
    busy = replace(CLUSTER.intra_node, processor_seconds=3.0, processor_seconds_per_byte=0.5)
    kinds = tuple(replace(kind, host_bandwidth_bytes_per_second=8.0) for kind in CLUSTER.device_types)
    model = CostModel(GRAPH, TABLE, replace(CLUSTER, intra_node=busy, device_types=kinds))
    assert model.message_seconds(200, 0, 1) == 103
    assert model.message_seconds(200, 1, 2) == model.message_seconds(200, 1, 1) == 0
    assert model.copy_seconds(204, 0) == 25.5
    # In a ring of 3, each device sends 2 messages of 100 bytes and receives 2. Between nodes messages cost nothing.
    assert model.all_gather_work_seconds(200, (0, 1)) == 2 * (3 + 50)
    three = replace(CLUSTER, intra_node=busy, devices=tuple(replace(each, node="n") for each in CLUSTER.devices))
    assert CostModel(GRAPH, TABLE, three).all_gather_work_seconds(300, (0, 1, 2)) == 4 * (3 + 50)
    assert model.all_gather_work_seconds(0, (0, 1)) == model.all_gather_work_seconds(200, (0,)) == 0


def test_a_stage_on_devices_of_two_types_has_the_tasks_of_both() -> None:
    found = MODEL.tasks_seconds(("a",), (0, 1, 2), 2)
    assert [each.forward for each in found] == [1.125, 2.125]
    alike = replace(CLUSTER, device_types=CLUSTER.device_types[:1], devices=CLUSTER.devices[1:])
    assert [each.forward for each in CostModel(GRAPH, TABLE, alike).tasks_seconds(("a",), (0, 1), 2)] == [2.125]


def test_inference_has_forwards_only() -> None:
    found = CostModel.of(GRAPH, TABLE, CLUSTER, trains=False)
    assert found is CostModel.of(GRAPH, TABLE, CLUSTER, trains=False)
    assert found is not CostModel.of(GRAPH, TABLE, CLUSTER)
    seconds = found.task_seconds(("a", "c"), 1, 2)
    assert (seconds.forward, seconds.backward) == (202.125, 0)
    assert [each.tolist() for each in found.seconds("fast", 2)] == [[1, 10, 100, 1000], [0] * 4, [0] * 4]
    assert found.seconds("fast", 0)[0].tolist() == [0] * 4


def test_a_ring_all_reduce_takes_twice_degree_minus_one_steps_over_the_slowest_link() -> None:
    assert MODEL.all_reduce_seconds(200, (0, 1)) == 2 * (1 + 100 / 100)
    assert MODEL.all_reduce_seconds(300, (0, 1, 2)) == 4 * (2 + 100 / 10)
    assert MODEL.all_reduce_seconds(300, (2,)) == 0
    assert MODEL.all_reduce_seconds(0, (0, 1)) == 0
    assert MODEL.all_gather_seconds(300, (0, 1, 2)) == 2 * (2 + 100 / 10)


def test_the_work_of_a_ring_all_reduce_is_that_of_its_messages() -> None:
    # Each of 2(d-1) steps sends one message of count/d bytes and receives one, which take 3 s and 1 s per 50 bytes.
    link = Link(
        latency_seconds=0, bandwidth_bytes_per_second=1, processor_seconds=3.0, processor_seconds_per_byte=1 / 50
    )
    model = CostModel(GRAPH, TABLE, replace(CLUSTER, intra_node=link, inter_node=link))
    assert model.all_reduce_work_seconds(200, (0, 1)) == 2 * 2 * (3 + 2)
    assert model.all_reduce_work_seconds(300, (0, 1, 2)) == 4 * 2 * (3 + 2)
    assert model.all_gather_work_seconds(300, (0, 1, 2)) == 2 * 2 * (3 + 2)
    assert model.all_gather_work_seconds(400, (0, 1, 2, 3)) == 3 * 2 * (3 + 2)
    assert model.all_reduce_work_seconds(300, (2,)) == model.all_reduce_work_seconds(0, (0, 1)) == 0
    assert MODEL.all_reduce_work_seconds(200, (0, 1)) == 0


def test_frozen_parameters_have_neither_optimizer_state_nor_optimizer_step() -> None:
    assert MODEL.optimizer_seconds(("a", "b", "c", "d")) == 110 * 0.25
    assert MODEL.parameter_bytes.state(("a", "b", "c", "d")) == 4 * 110 + 1000


def test_a_shared_parameter_counts_once_among_operators_and_again_at_every_other_holder() -> None:
    ops = tuple(replace(op, parameters=("tied",)) if op.name in "abd" else op for op in GRAPH.ops)
    ops = (*ops[:3], replace(ops[3], parameter_bytes=10.0))
    graph = replace(GRAPH, ops=ops, shared=(Shared(name="tied", bytes=10.0),))
    model = CostModel(graph, replace(TABLE, graph_fingerprint=graph.fingerprint), CLUSTER)
    assert model.parameter_bytes.gradients(("a", "b", "c", "d")) == 100
    assert model.parameter_bytes.gradients(("a", "b")) == 100
    assert model.parameter_bytes.gradients(("d",)) == 10
    assert model.parameter_bytes.gradients(("a", "b"), without=("tied",)) == 90
    assert model.parameter_bytes.gradients(("c",), without=("tied",)) == 0
    assert model.parameter_bytes.state(("a", "b", "c", "d")) == 4 * 100 + 1000
    assert model.parameter_bytes.state(("a", "b")) + model.parameter_bytes.state(("c", "d")) == 4 * 100 + 1000 + 4 * 10
    assert model.optimizer_seconds(("a", "d")) == 10 * 0.25


def kept_per_sample(ops: tuple[str, ...], recompute: Recompute = "none") -> float:
    return MODEL.stage_memory(ops, 1.0, recompute).per_sample


def test_activations_are_the_saved_bytes_and_the_received_bytes_counted_once() -> None:
    assert kept_per_sample(("a",)) == 1
    # a's output is read by b and c (5 and 7 bytes of it) but is received once.
    assert kept_per_sample(("b", "c")) == 110 + 7
    assert kept_per_sample(("d",)) == 1000 + 550
    assert kept_per_sample(("a", "b", "c", "d")) == 1111


def test_a_stage_that_recomputes_in_full_keeps_its_inputs_and_runs_its_forward_twice() -> None:
    assert kept_per_sample(("b", "c"), "full") == 7
    assert MODEL.activation_bytes.recomputed(("b", "c"), "full") == 110
    none, full = (MODEL.task_seconds(("a", "c"), 1, 2, how) for how in ("none", "full"))
    assert (full.forward, full.weight_gradient) == (none.forward, none.weight_gradient)
    assert full.backward == none.backward + 2 * 101


def test_recomputation_takes_the_seconds_and_bytes_of_its_regions_only() -> None:
    none, some = (MODEL.task_seconds(("a", "b", "c"), 1, 2, how) for how in ("none", ("a", "c")))
    assert some.backward == none.backward + 2 * 101
    assert MODEL.activation_bytes.recomputed(("a", "b", "c"), ("a", "c")) == 100


@pytest.mark.parametrize(
    ("recompute", "kept"),
    [
        (("a",), 1 + 10 + 100 + 1000),  # b and c read all that a saved, so they hold its 1 byte
        (("b",), 5 + 10 + 100 + 1000),  # b is computed again from 5 bytes of a; d holds what b saved
        (("b", "d"), 5 + 50 + 500),  # d is computed again from b's 50 bytes and c's, which saves 100 of those 500
        (("b", "c"), 7 + 10 + 100 + 1000),
        (("d",), 1 + 50 + 500),
        (("a", "b", "c", "d"), 7 + 50 + 500),
    ],
)
def test_regions_keep_the_outputs_that_others_read(recompute: tuple[str, ...], kept: float) -> None:
    assert kept_per_sample(("a", "b", "c", "d"), recompute) == kept


def test_an_output_that_leaves_the_stage_is_held_for_its_gradient() -> None:
    assert kept_per_sample(("b",), ("b",)) == 50 + 5
    assert kept_per_sample(("b",), "full") == 5


@pytest.mark.parametrize(
    ("offload", "recompute", "kept", "away"),
    [
        ((), "none", 1111, 0),
        (("d",), "none", 111 + 0, 1000),  # nobody reads d
        (("b",), "none", 1 + 10 + 100 + 1000, 0),  # d holds 50 bytes of b's output, more than b saved
        (("c",), "none", 1 + 10 + 100 + 1000, 0),
        (("c", "d"), "none", 1 + 10, 100 + 1000),  # together, they do not hold outputs of each other
        (("a", "b", "c", "d"), "none", 0, 1111),
        # b is computed again from 5 bytes of a. d holds what b saved, and would also if it were not offloaded.
        (("d",), ("b",), 5 + 10 + 100, 1000),
        (("c", "d"), ("b",), 5 + 10, 100 + 1000),
    ],
)
def test_what_is_offloaded_leaves_unless_it_is_held_anyway(
    offload: tuple[str, ...], recompute: Recompute, kept: float, away: float
) -> None:
    ops = ("a", "b", "c", "d")
    assert MODEL.activation_bytes.saved(ops, recompute, offload) == kept
    assert MODEL.activation_bytes.offloaded(ops, recompute, offload) == away
    memory = MODEL.stage_memory(ops, 3.0, recompute, offload=offload)
    assert (memory.offloaded, memory.moving) == (away, 2 * 3 * away)
    assert MODEL.stage_memory(ops, 3.0, state="all").state == MODEL.parameter_bytes.state(ops)


def cast_model(*, trains: bool = True) -> CostModel:
    """Return the model under autocast: each forward of b and c keeps copies of weights, of 12 and 24 bytes."""
    copies = {"b": 12.0, "c": 24.0}
    ops = tuple(
        replace(op, work=replace(op.work, saved_bytes_per_forward=copies.get(op.name, 0.0))) for op in GRAPH.ops
    )
    graph = replace(GRAPH, ops=ops)
    return CostModel(graph, replace(TABLE, graph_fingerprint=graph.fingerprint), CLUSTER, trains)


def test_samples_of_a_micro_batch_share_the_copies_that_autocast_keeps() -> None:
    model = cast_model()
    assert model.op_bytes.has_casts
    assert not MODEL.op_bytes.has_casts
    assert model.activations(4.0) is model.activations(4.0)
    assert MODEL.activations(4.0) is MODEL.activation_bytes
    for samples in (1.0, 4.0):
        assert model.activations(samples).saved(("a", "b", "c")) == 111 + 36 / samples
        assert model.stage_memory(("a", "b", "c"), samples).saved == 111 + 36 / samples
        assert model.stage_memory(("a", "b"), samples, "full").recomputed == 11 * samples + 12
        # A copy of weights is nobody's input: who keeps the output of a region does not keep it.
        assert model.stage_memory(("b", "c"), samples, ("b",)).saved == 50 + 100 + 24 / samples
    assert model.activation_bytes.saved(("a", "b", "c")) == 111
    assert model.op_bytes.saved_of(np.array([1.0, 4.0])).tolist() == [[1, 1], [22, 13], [124, 106], [1000, 1000]]
    assert not cast_model(trains=False).op_bytes.has_casts


def test_a_submodule_is_one_region() -> None:
    assert regions(("x.a", "x.b", "y", "xz"), ("x", "y")) == (("x.a", "x.b"), ("y",))
    assert regions(("a", "b"), "full") == (("a", "b"),)
    assert regions(("a", "b"), "none") == ()


def test_regions_without_a_gradient_are_not_recomputed() -> None:
    frozen = Graph(
        name="f",
        ops=(replace(GRAPH.ops[0], trainable=False), *GRAPH.ops[1:]),
        edges=GRAPH.edges,
    )
    model = CostModel(frozen, replace(TABLE, graph_fingerprint=frozen.fingerprint), CLUSTER)
    none, some = (model.task_seconds(("a", "b"), 1, 2, how) for how in ("none", ("a", "b")))
    assert some.backward == none.backward + 2 * 10
    assert model.task_seconds(("a",), 1, 2, "full") == model.task_seconds(("a",), 1, 2)


def test_a_table_for_another_graph_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the cost table was made for graph"):
        CostModel(Graph(name="other", ops=GRAPH.ops, edges=()), TABLE, CLUSTER)


def test_the_halves_of_a_split_backward_take_what_was_measured() -> None:
    # A half is never shorter than its gradient in one pass: a measured 7 n + 1 counts where it is above that.
    halves = Halves(input=line(1, 7), weight=line(1, 0))
    rows = tuple(replace(row, halves=halves) if row.op == "b" else row for row in TABLE.rows)
    table = replace(TABLE, rows=rows)
    seconds = CostModel(GRAPH, table, CLUSTER).task_seconds(("a", "b"), 1, 2)
    plain = MODEL.task_seconds(("a", "b"), 1, 2)
    assert seconds.backward == plain.backward == 44.125 + 33
    assert (plain.input_half, plain.weight_half) == (44.125, 33)
    assert (seconds.input_half, seconds.weight_half) == (44.125, 33)
    longer = tuple(replace(row, halves=Halves(input=line(1, 70), weight=line(100, 0))) for row in TABLE.rows)
    seconds = CostModel(GRAPH, replace(TABLE, rows=longer), CLUSTER).task_seconds(("a", "b"), 1, 2)
    assert (seconds.of("I", 0.125), seconds.of("W", 0.125)) == (2 * 141 + 0.125, 200.125)
