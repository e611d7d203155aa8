"""The analytic model: hand-computed lines, and which gradients it counts."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import OpCost, estimate
from graphpipe.graph import Edge, Graph, Measured, Op, Origin, Work

LINK = Link(latency_seconds=0, bandwidth_bytes_per_second=1)
ROUND = DeviceType(
    name="round",
    memory_bytes=1,
    peak_flops_per_second=100.0,
    memory_bytes_per_second=10.0,
    launch_seconds=0.5,
    half_peak_flops=200.0,
)


def cluster(*kinds: DeviceType) -> Cluster:
    devices = tuple(Device(name=kind.name, type=kind.name, node="n") for kind in kinds)
    return Cluster(name="test", device_types=kinds, devices=devices, intra_node=LINK, inter_node=LINK)


def chain(*ops: Op) -> Graph:
    pairs = itertools.pairwise(ops)
    return Graph(name="g", ops=ops, edges=tuple(Edge(source=here.name, target=there.name) for here, there in pairs))


def costs(*ops: Op) -> list[OpCost]:
    return list(estimate(chain(*ops), cluster(ROUND)).rows)


PRODUCT = Op(
    name="product",
    parameter_bytes=40.0,
    work=Work(flops_per_sample=300.0, traffic_bytes_per_sample=20.0, kernels=7),
)


def test_the_two_lines_of_the_roofline() -> None:
    _, row = costs(PRODUCT, replace(PRODUCT, name="second"))
    # Launch 7 x 0.5; two of the seven kernels compute: 2 x 200 / 100. Memory: 40 / 10 once, 20 / 10 per sample.
    assert row.forward.lines == ((3.5 + 4.0, 3.0), (3.5 + 4.0, 2.0))
    assert row.forward(10) == 37.5
    assert row.input_gradient == row.forward
    assert row.weight_gradient == row.forward
    assert row.source == "analytic"
    (uneven,) = estimate(chain(PRODUCT), cluster(replace(ROUND, half_peak_flops=25.0))).rows
    assert uneven.forward.lines[0] == (3.5 + 0.5, 3.0)


def test_the_peak_is_that_of_the_precision_which_the_graph_counts() -> None:
    kind = replace(ROUND, bf16_peak_flops_per_second=400.0, fp16_peak_flops_per_second=800.0)
    lines = {}
    for precision in (None, "fp32", "bf16", "fp16"):
        graph = replace(chain(PRODUCT), origin=Origin(method="export", precision=precision))
        lines[precision] = estimate(graph, cluster(kind)).rows[0].forward.lines[0]
    assert lines == {None: (7.5, 3.0), "fp32": (7.5, 3.0), "bf16": (7.5, 0.75), "fp16": (7.5, 0.375)}
    assert estimate(graph, cluster(ROUND)).rows[0].forward.lines[0] == (7.5, 3.0)  # no units of its own


def test_an_operator_can_have_products_of_its_own_precision() -> None:
    eight = replace(PRODUCT, work=replace(PRODUCT.work, products="fp8"))
    kind = replace(ROUND, bf16_peak_flops_per_second=200.0, fp8_peak_flops_per_second=400.0)
    graph = replace(chain(eight), origin=Origin(method="export", precision="bf16"))
    assert estimate(graph, cluster(kind)).rows[0].forward.lines[0] == (7.5, 0.75)
    # Without such units they run at the peak of bf16, and without that at fp32's.
    without = replace(kind, fp8_peak_flops_per_second=None)
    assert estimate(graph, cluster(without)).rows[0].forward.lines[0] == (7.5, 1.5)
    assert estimate(graph, cluster(ROUND)).rows[0].forward.lines[0] == (7.5, 3.0)


def test_what_is_computed_of_parameters_does_not_depend_on_the_samples() -> None:
    (row,) = costs(replace(PRODUCT, work=replace(PRODUCT.work, traffic_bytes_per_forward=60.0)))
    # 40 bytes of parameters and 60 of what is computed of them, at 10 bytes per second.
    assert row.forward.lines[1] == (3.5 + 10.0, 2.0)
    assert row.weight_gradient.lines[1] == (3.5 + 4.0, 2.0)


def test_efficiency_grows_with_the_samples_and_saturates() -> None:
    (row,) = costs(Op(name="a", work=Work(flops_per_sample=100.0, kernels=0)))
    efficiency = [n * 100.0 / 100.0 / row.forward(n) for n in (1, 2, 8, 1000)]
    assert efficiency == pytest.approx([1 / 3, 1 / 2, 0.8, 1000 / 1002])


def test_a_table_look_up_reads_its_rows_and_writes_a_whole_gradient() -> None:
    (row,) = costs(Op(name="table", parameter_bytes=1000.0, work=Work(traffic_bytes_per_sample=20.0, kernels=1)))
    assert row.forward.lines == ((0.5, 2.0),)
    assert row.input_gradient.lines == ()
    assert row.weight_gradient.lines == ((0.5 + 100.0, 2.0),)


def test_a_product_under_autocast_reads_the_copies_that_its_forward_wrote() -> None:
    work = replace(PRODUCT.work, saved_bytes_per_forward=15.0)
    (row,) = costs(replace(PRODUCT, work=work))
    # 40 bytes of parameters, 15 written and 15 read; the gradient of the parameters is as large as they are.
    assert row.forward.lines == ((3.5 + 4.0, 3.0), (3.5 + 7.0, 2.0))
    assert row.weight_gradient.lines == ((3.5 + 4.0, 3.0), (3.5 + 4.0, 2.0))
    look_up = Op(name="table", parameter_bytes=40.0, work=replace(work, flops_per_sample=0.0))
    assert costs(look_up)[0].forward.lines == ((3.5, 2.0),)


def gradients(*ops: Op) -> list[str]:
    return ["I" * bool(row.input_gradient.lines) + "W" * bool(row.weight_gradient.lines) for row in costs(*ops)]


def test_gradients_are_counted_where_training_needs_them() -> None:
    work = Work(flops_per_sample=1.0)
    trained = Op(name="trained", parameter_bytes=4, work=work)
    frozen = Op(name="frozen", parameter_bytes=4, work=work, trainable=False)
    glue, glue2 = Op(name="glue", work=work), Op(name="glue2", work=work)
    # An input gradient needs trainable operators upstream. A frozen operator after a trained one still has it.
    assert gradients(glue, trained, glue2, frozen) == ["", "W", "I", "I"]
    assert gradients(frozen, glue, trained) == ["", "", "W"]
    assert gradients(trained, Op(name="next", parameter_bytes=4, work=work)) == ["W", "IW"]


def test_one_trainable_branch_is_enough_for_the_join() -> None:
    names = ("left", "right", "join")
    ops = tuple(Op(name=name, parameter_bytes=4.0 * (name == "left"), work=Work(flops_per_sample=1)) for name in names)
    graph = Graph(name="g", ops=ops, edges=tuple(Edge(source=name, target="join") for name in ("left", "right")))
    rows = estimate(graph, cluster(ROUND)).rows
    assert [bool(row.input_gradient.lines) for row in rows] == [False, False, True]


def test_imported_times_are_linear_and_split_between_the_gradients_that_are_needed() -> None:
    times = Measured(forward_seconds=6.0, backward_seconds=10.0, samples=4)
    first = Op(name="first", parameter_bytes=1, measured=times)
    rows = costs(first, Op(name="glue", measured=times), Op(name="last", parameter_bytes=1, measured=times))
    assert [row.forward(2) for row in rows] == [3, 3, 3]
    assert [(row.input_gradient(2), row.weight_gradient(2)) for row in rows] == [(0, 5), (5, 0), (2.5, 2.5)]
    assert {row.source for row in rows} == {"imported"}


def test_every_device_type_has_its_rows_and_the_slowest_memory_paces_the_optimizer() -> None:
    fast = DeviceType(
        name="fast",
        memory_bytes=1,
        peak_flops_per_second=1000,
        memory_bytes_per_second=70,
        launch_seconds=0,
        half_peak_flops=0,
    )
    table = estimate(chain(PRODUCT), cluster(fast, ROUND), state_bytes_per_parameter_byte=2.0)
    table.check_for(chain(PRODUCT), {"fast", "round"})
    assert table.by_op["product", "fast"].forward.lines == ((0, 0.3), (40 / 70, 20 / 70))
    assert table.optimizer_seconds_per_parameter_byte == 0.7
    assert table.state_bytes_per_parameter_byte == 2.0
    assert estimate(chain(PRODUCT), cluster(ROUND)).state_bytes_per_parameter_byte == 4.0


@given(st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 1e10), st.integers(0, 40), st.integers(1, 4096))
def test_every_pass_stays_below_the_peaks_of_the_device(
    flops: float, traffic: float, parameters: float, kernels: int, samples: int
) -> None:
    work = Work(flops_per_sample=flops, traffic_bytes_per_sample=traffic, kernels=kernels)
    summit = Cluster.preset("summit:1x1")
    (kind,) = summit.device_types
    (row,) = estimate(chain(Op(name="a", parameter_bytes=parameters, work=work)), summit).rows
    seconds = row.forward(samples) * (1 + 1e-12)  # rounding
    assert seconds >= samples * flops / kind.peak_flops_per_second
    assert seconds >= samples * traffic / kind.memory_bytes_per_second
    assert seconds >= kernels * kind.launch_seconds
    assert row.forward(samples + 1) * (1 + 1e-12) >= seconds
