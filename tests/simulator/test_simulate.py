"""Predicted traces against hand-computed times."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan, plans, share
from hypothesis import given, settings
from shared_replicas import chain as layers_in_a_row
from shared_replicas import layer, problem, shards

from graphpipe.cluster import Link, PairLink
from graphpipe.costs import Curve, State
from graphpipe.errors import InvalidInput
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.estimates import bottleneck_seconds, least_step_seconds, update_seconds
from graphpipe.schedule import Schedule
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace


def times(trace: Trace, device: int, *kinds: str) -> list[tuple[str, float, float]]:
    return [
        (f"{span.kind}{span.micro_batch}", span.start_seconds, span.end_seconds)
        for span in trace.spans
        if span.device == device and span.kind in kinds
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "kfkb"])
@pytest.mark.parametrize(("depth", "count"), [(1, 1), (2, 4), (4, 8), (3, 2)])
def test_a_balanced_chain_takes_m_plus_p_minus_1_turns(name: str, depth: int, count: int):
    plan = make_plan([Part(forward=1, backward=2)] * depth, batch_size=count, schedule=name)
    trace = simulate(plan)
    assert trace.step_seconds == (count + depth - 1) * (1 + 2)
    assert trace.bubble_fraction == pytest.approx((depth - 1) / (count + depth - 1))


def test_parallel_branches_fill_and_drain_together():
    # Two branches of costs 1 and 10, joined by a stage of cost 100; backward as long as forward.
    parts = [Part(forward=1, backward=1), Part(forward=10, backward=10), Part(forward=100, backward=100)]
    branches = make_plan(parts, [(0, 2, 0.0), (1, 2, 0.0)], batch_size=2)
    trace = simulate(branches)
    assert times(trace, 0, "F", "B") == [("F0", 0, 1), ("F1", 1, 2), ("B0", 210, 211), ("B1", 410, 411)]
    assert times(trace, 1, "F", "B") == [("F0", 0, 10), ("F1", 10, 20), ("B0", 210, 220), ("B1", 410, 420)]
    assert trace.step_seconds == 10 + 2 * 200 + 10
    assert simulate(make_plan(parts, batch_size=2)).step_seconds == 1 + 10 + 2 * 200 + 10 + 1


def test_the_join_stage_paces_a_two_branch_pipeline():
    # The drawing in the docstring of 1F1B.
    plan = make_plan([Part(), Part(), Part()], [(0, 2, 0.0), (1, 2, 0.0)], batch_size=4)
    trace = simulate(plan)
    assert trace.step_seconds == (4 + 2 - 1) * 3
    starts = [(kind, start) for kind, start, _ in times(trace, 0, "F", "B")]
    assert starts == [("F0", 0), ("F1", 1), ("B0", 4), ("F2", 6), ("B1", 7), ("F3", 9), ("B2", 10), ("B3", 13)]


def test_a_transfer_takes_latency_and_bytes_over_bandwidth_each_way():
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=2.0)
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=18), batch_size=1, link=link)
    trace = simulate(plan)  # F 1, send 1 + 18/2, F 1, B 2, send 10, B 2
    assert trace.step_seconds == 1 + 10 + 1 + 2 + 10 + 2
    assert times(trace, 0, "send", "receive") == [("send0", 1, 11), ("receive0", 14, 24)]
    assert {(span.bytes, span.peer) for span in trace.spans if span.kind == "send"} == {(18, 1), (18, 0)}


def test_input_comparison_and_scalar_sum_take_device_time_if_messages_do():
    # Each message costs the device at each end 1 second, and its transfer takes 10.
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=2.0, processor_seconds=1.0)
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=18), batch_size=1, link=link)
    trace = simulate(plan)
    # Both compare their inputs: each sends a message and receives one.
    assert times(trace, 0, "F", "B") == [("F0", 2, 3), ("B0", 30, 32)]
    # After F0: sent until 4, under way until 14, taken until 15. After B: sent until 19, under way until 29.
    assert times(trace, 1, "F", "B") == [("F0", 15, 16), ("B0", 16, 18)]
    # Then device 1 sends its scalars, and device 0 receives them and sends their sum.
    assert trace.step_seconds == 32 + 2
    assert step_seconds(plan) == trace.step_seconds


def test_a_device_that_copies_its_messages_works_for_every_byte():
    # Forward, backward 1 and 2 seconds; each end of a message works 18 / 6 = 3 seconds. Comparisons have 0 bytes.
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=2.0, processor_seconds_per_byte=1 / 6)
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=18), batch_size=1, link=link)
    trace = simulate(plan)
    # Sent until 4, under way until 14, taken until 17; back: sent until 23, under way until 33, taken until 36.
    assert times(trace, 1, "F", "B") == [("F0", 17, 18), ("B0", 18, 20)]
    assert times(trace, 0, "B") == [("B0", 36, 38)]
    assert step_seconds(plan) == trace.step_seconds == 38


def test_a_device_takes_all_messages_of_a_task_before_it():
    # Sent until 4 and 2, under way until 14 and 6. The work of both, 3 and 1 seconds, comes before the forward.
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=2.0, processor_seconds_per_byte=1 / 6)
    plan = make_plan([Part()] * 3, [(0, 2, 18.0), (1, 2, 6.0)], batch_size=1, link=link)
    assert times(simulate(plan), 2, "F") == [("F0", 18, 19)]


def test_optimizer_steps_wait_for_the_scalar_sum():
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0, processor_seconds=1.0)
    parts = [Part(parameter_bytes=1), Part(parameter_bytes=1)]
    plan = make_plan(
        parts, chain(2, bytes_per_sample=1), batch_size=1, link=link, optimizer_seconds_per_parameter_byte=5.0
    )
    trace = simulate(plan)
    ends = [span.end_seconds for device in (0, 1) for span in trace.spans if span.device == device][-1]
    updates = {span.device: span.start_seconds for span in trace.spans if span.kind == "optimizer"}
    assert updates[0] == updates[1] == ends - 5


@pytest.mark.parametrize("root", [0, 1])
def test_the_scalar_sum_waits_for_the_last_device(root: int):
    # The first rank ends at 3 s, the other one at 12. That one handles 2 messages of 1 s, and then the first does. The
    # few bytes of scalars count as none.
    link = Link(
        latency_seconds=0.0, bandwidth_bytes_per_second=1.0, processor_seconds=1.0, processor_seconds_per_byte=0.25
    )
    parts = [Part(devices=(root,)), Part(devices=(1 - root,), forward=10)]
    assert simulate(make_plan(parts, [], batch_size=1, link=link)).step_seconds == 12 + 2 + 2


def frozen_tower(bytes_per_sample: float, schedule: str = "1f1b") -> Plan:
    """Return a plan whose stages 0 (frozen, its backward takes 0 seconds) and 1 (trained) both feed stage 2."""
    parts = [Part(backward=0, parameter_bytes=1), Part(parameter_bytes=1), Part(parameter_bytes=1)]
    edges = [(0, 2, bytes_per_sample), (1, 2, 0.0)]
    plan = make_plan(parts, edges, batch_size=2, schedule=schedule)
    ops = tuple(replace(op, trainable=op.name != "s0") for op in plan.graph.ops)
    graph = replace(plan.graph, ops=ops)
    return replace(plan, graph=graph, costs=replace(plan.costs, graph_fingerprint=graph.fingerprint))


@given(plan=plans(schedules=("1f1b", "interleaved", "kfkb", "gpipe", "zb-h1", "zb-auto")))
@settings(max_examples=75, deadline=None)
def test_every_step_takes_at_least_the_lower_bound(plan: Plan) -> None:
    try:
        seconds = step_seconds(plan)
    except InvalidInput:  # Mixed micro-batch sizes may deadlock under a schedule that is not made for them.
        return
    assert least_step_seconds(plan) <= seconds * (1 + 1e-9)
    if not plan.schedule.startswith("zb"):
        assert least_step_seconds(plan, whole_backwards=True) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(("schedule", "seconds"), [("1f1b", 26), ("gpipe", 28), ("zb-h1", 25), ("zb-auto", 25)])
def test_gradients_are_not_sent_to_a_frozen_tower(schedule: str, seconds: float):
    plan = frozen_tower(bytes_per_sample=10, schedule=schedule)
    trace = simulate(plan)
    # Outputs arrive at 11 and 21, the last ones are forwarded at 22 and their gradients are there at 24 (GPipe, after
    # the first ones: 26; only the input half: 23). Then stage 1 runs backward. Stage 0 gets no gradient and ends
    # after its forwards.
    assert times(trace, 0, "send", "receive") == [("send0", 1, 11), ("send1", 11, 21)]
    assert times(trace, 0, "F", "B")[-1][2] == 2
    assert step_seconds(plan) == trace.step_seconds == seconds
    assert least_step_seconds(plan) <= seconds
    if plan.schedule in ("1f1b", "gpipe", "kfkb"):
        assert least_step_seconds(plan, whole_backwards=True) <= seconds


def test_a_frozen_tower_saves_the_way_back_where_transfers_occupy_the_devices():
    plan = frozen_tower(bytes_per_sample=10)
    one_way = replace(plan, cluster=replace(plan.cluster, overlap=False))
    # Stage 2: F and B take 3, and 10 for the outputs of stage 0; a gradient would take another 10.
    assert bottleneck_seconds(one_way) == 3 + 10
    both_ways = make_plan([Part(), Part(), Part()], [(0, 2, 10.0), (1, 2, 0.0)], batch_size=2, overlap=False)
    assert bottleneck_seconds(both_ways) == 3 + 2 * 10


def two_sends(overlap: bool) -> Trace:
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=10), batch_size=2, overlap=overlap)
    return simulate(plan)


def test_overlapping_transfers_leave_the_device_free_but_go_one_at_a_time():
    trace = two_sends(overlap=True)
    assert times(trace, 0, "F") == [("F0", 0, 1), ("F1", 1, 2)]
    assert times(trace, 0, "send") == [("send0", 1, 11), ("send1", 11, 21)]
    assert times(trace, 1, "F", "B") == [("F0", 11, 12), ("B0", 12, 14), ("F1", 21, 22), ("B1", 22, 24)]
    assert trace.step_seconds == 24 + 10 + 2


def test_without_overlap_a_transfer_occupies_both_ends():
    trace = two_sends(overlap=False)
    assert times(trace, 0, "F", "send") == [("F0", 0, 1), ("send0", 1, 11), ("F1", 11, 12), ("send1", 12, 22)]
    # Device 1 takes what is sent at 12 before it goes back with micro-batch 0; then the gradient occupies it from 24.
    assert times(trace, 1, "F", "B") == [("F0", 11, 12), ("B0", 22, 24), ("F1", 34, 35), ("B1", 35, 37)]
    assert trace.step_seconds == 37 + 10 + 2


@pytest.mark.parametrize(("duplex", "step"), [(False, 72), (True, 62)])
def test_on_a_duplex_cluster_transfers_against_each_other_run_together(duplex: bool, step: float):
    plan = make_plan([Part(), Part()], chain(2, bytes_per_sample=10), batch_size=3, overlap=False)
    trace = simulate(replace(plan, cluster=replace(plan.cluster, duplex=duplex)))
    # As above until 34. F2 is done at 37, and so is B1: its gradient and the output of F2 pass each other.
    assert times(trace, 1, "B")[:2] == [("B0", 22, 24), ("B1", 35, 37)]
    sent = [(span.device, span.start_seconds, span.end_seconds) for span in trace.spans if span.kind == "send"]
    assert {each[1:] for each in sent if 37 <= each[1] < 50} == ({(37, 47)} if duplex else {(37, 47), (47, 57)})
    assert trace.step_seconds == step


def test_the_longer_of_two_transfers_against_each_other_frees_the_devices():
    # Stages 0 and 2 are on device 0. Messages between 0 and 1 take 4 s, those between 1 and 2 take 2 s.
    parts = [Part(devices=(0,), backward=1), Part(devices=(1,), backward=1), Part(devices=(0,), forward=2)]
    plan = make_plan(parts, [(0, 1, 4.0), (1, 2, 2.0)], batch_size=2, overlap=False)
    trace = simulate(replace(plan, cluster=replace(plan.cluster, duplex=True)))
    # From 6 s the second output of stage 0 and the first of stage 1 pass each other. Both devices wait for the longer.
    assert times(trace, 0, "F", "send")[2:5] == [("F1", 5, 6), ("send1", 6, 10), ("F0", 10, 12)]
    assert times(trace, 1, "F", "send")[:4] == [("F0", 5, 6), ("send0", 6, 8), ("F1", 10, 11), ("send1", 12, 14)]
    # So do the second gradient of stage 2 and the first of stage 1, from 22 s.
    assert times(trace, 1, "B", "send")[2:] == [("B0", 18, 19), ("send0", 22, 26), ("B1", 26, 27), ("send1", 27, 31)]
    assert trace.step_seconds == 32


def test_two_transfers_in_the_same_direction_run_one_after_the_other_on_a_duplex_cluster():
    # Stage 1 takes the two samples of a micro-batch of stage 0 one by one.
    plan = make_plan([Part(micro_batch=2), Part()], [(0, 1, 10.0)], batch_size=2, overlap=False)
    trace = simulate(replace(plan, cluster=replace(plan.cluster, duplex=True)))
    assert times(trace, 0, "F", "send") == [("F0", 0, 2), ("send0", 2, 12), ("send0", 12, 22)]


def test_the_optimizer_step_of_a_device_updates_all_its_stages():
    parts = [Part(devices=(0,), parameter_bytes=10), Part(devices=(1,), parameter_bytes=3)]
    parts += [Part(devices=(0,), parameter_bytes=20)]
    trace = simulate(make_plan(parts, batch_size=1, optimizer_seconds_per_parameter_byte=1.0))
    steps = {span.device: span.end_seconds - span.start_seconds for span in trace.spans if span.kind == "optimizer"}
    assert steps == {0: 10 + 20, 1: 3}


@pytest.mark.parametrize("slow", [0, 1])
def test_an_all_reduce_waits_for_the_slowest_replica(slow: int):
    plan = make_plan([Part(degree=2, micro_batch=2, parameter_bytes=4)], batch_size=4)
    kind, (here, there) = plan.cluster.device_types[0], plan.cluster.devices
    devices = [replace(here, type="slow"), there] if slow == 0 else [here, replace(there, type="slow")]
    types = (kind, replace(kind, name="slow"))
    rows = [replace(row, device_type="slow", forward=Curve(lines=((0.0, 5.0),))) for row in plan.costs.rows]
    plan = replace(
        plan,
        cluster=replace(plan.cluster, devices=tuple(devices), device_types=types),
        costs=replace(plan.costs, rows=(*plan.costs.rows, *rows)),
    )
    trace = simulate(plan)
    # Two micro-batches, one sample each: 3 s on the fast device, 7 s on the slow one. Then 4 bytes over two devices.
    starts = {span.start_seconds for span in trace.spans if span.kind == "reduce"}
    assert starts == {2 * 7}
    assert trace.step_seconds == 2 * 7 + 4


def test_stages_of_one_device_pass_values_without_cost():
    parts = [Part(devices=(0,)), Part(devices=(0,))]
    trace = simulate(make_plan(parts, chain(2, bytes_per_sample=1000), batch_size=4))
    assert trace.step_seconds == 4 * (3 + 3)
    assert trace.bubble_fraction == 0
    assert not any(span.kind in ("send", "receive") for span in trace.spans)


def test_replicas_split_the_micro_batch_and_reduce_at_the_end():
    # 2 samples each: F 2, B 4; the ring moves 2 x 1 steps of half of 1000 bytes; then 1000 x 0.01 of optimizer.
    part = Part(micro_batch=4, degree=2, parameter_bytes=1000)
    plan = make_plan([part], batch_size=4, optimizer_seconds_per_parameter_byte=0.01)
    trace = simulate(plan)
    for device in (0, 1):
        assert times(trace, device, "F", "B", "reduce", "optimizer") == [
            ("F0", 0, 2),
            ("B0", 2, 6),
            ("reduce-1", 6, 1006),
            ("optimizer-1", 1006, 1016),
        ]
    assert trace.step_seconds == 1016


def test_replicas_work_for_the_messages_of_their_sum_if_devices_handle_messages():
    # A replica sends and receives 500 bytes in both steps of the ring: 4 messages of 1 + 500 / 100 seconds.
    link = Link(
        latency_seconds=0.0, bandwidth_bytes_per_second=1.0, processor_seconds=1.0, processor_seconds_per_byte=0.01
    )
    part = Part(micro_batch=4, degree=2, parameter_bytes=1000)
    trace = simulate(make_plan([part], batch_size=4, link=link))
    for device in (0, 1):
        assert times(trace, device, "B", "reduce") == [("B0", 2, 6), ("reduce-1", 6 + 4 * 6, 1030)]


def test_replicas_work_for_the_messages_of_gathered_weights():
    # The gather before the first task and the scatter of gradients: a step of the ring each, 2 messages of 1 second.
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0, processor_seconds=1.0)
    part = Part(micro_batch=4, degree=2, parameter_bytes=1000, state="all")
    trace = simulate(make_plan([part], batch_size=4, link=link))
    assert times(trace, 0, "F", "B", "reduce") == [("F0", 502, 504), ("B0", 504, 508), ("reduce-1", 510, 1010)]


def test_a_reduction_waits_for_the_last_replica_and_not_for_other_stages():
    # Stage 0 is on devices 0 and 1, stage 1 on device 1 only and unrelated: it delays the second replica.
    parts = [Part(micro_batch=2, degree=2, devices=(0, 1), parameter_bytes=10), Part(devices=(1,), micro_batch=2)]
    trace = simulate(make_plan(parts, [], batch_size=2))
    ends = {(span.device, span.stage): span.end_seconds for span in trace.spans if span.kind == "B"}
    reduce = {span.device: span.start_seconds for span in trace.spans if span.kind == "reduce"}
    assert reduce == {0: max(ends[0, 0], ends[1, 0]), 1: max(ends[0, 0], ends[1, 0])}
    assert reduce[0] < ends[1, 1]


def test_reductions_of_a_device_go_one_at_a_time():
    # Both stages on both devices: the first is done at 3, the second at 6; each ring moves 1000 bytes in all.
    part = Part(micro_batch=2, degree=2, devices=(0, 1), parameter_bytes=1000)
    trace = simulate(make_plan([part, part], [], batch_size=2))
    assert times(trace, 0, "reduce") == [("reduce-1", 3, 1003), ("reduce-1", 1003, 2003)]


def test_stages_reduce_tied_gradients_after_their_own():
    # Stage 0 on devices 0 and 1 reduces 100 of its own bytes from 3 to 103 (2 x 50); stage 1 is done at 6. Then all
    # three sum 300 bytes in 4 steps of 100. The optimizer steps over 400 bytes at stage 0, 300 at stage 1.
    parts = [Part(micro_batch=2, degree=2, parameter_bytes=100), Part(micro_batch=2)]
    plan = share(make_plan(parts, [], batch_size=2, optimizer_seconds_per_parameter_byte=0.01), (0, 1), 300)
    trace = simulate(plan)
    for device in (0, 1):
        assert times(trace, device, "reduce", "optimizer") == [
            ("reduce-1", 3, 103),
            ("reduce-1", 103, 503),
            ("optimizer-1", 503, 507),
        ]
    assert times(trace, 2, "B", "reduce", "optimizer") == [
        ("B0", 2, 6),
        ("reduce-1", 103, 503),
        ("optimizer-1", 503, 506),
    ]
    assert trace.step_seconds == 507
    assert trace.peak_bytes == (4 * 400, 4 * 400, 4 * 300)
    assert update_seconds(plan, 0) == 100 + 400 + 4


def test_parameters_tied_inside_a_device_do_not_cost_a_message():
    parts = [Part(devices=(0,)), Part(devices=(0,))]
    plan = share(make_plan(parts, [], batch_size=2), (0, 1), 300)
    assert simulate(plan).step_seconds == 2 * 2 * 3
    assert [tied.devices for tied in plan.tied_gradients] == [(0,)]


def test_processes_share_the_cores_of_a_node():
    # Four independent stages on two cores: each task takes twice as long, so do the optimizer steps.
    parts = [Part(parameter_bytes=5)] * 4
    alone = make_plan(parts, [], batch_size=2, optimizer_seconds_per_parameter_byte=1.0)
    shared = make_plan(parts, [], batch_size=2, optimizer_seconds_per_parameter_byte=1.0, cores_per_node=2)
    assert simulate(alone).step_seconds == 2 * 3 + 5
    assert simulate(shared).step_seconds == pytest.approx(2 * (2 * 3 + 5))


def test_peak_memory_of_1f1b_is_state_and_the_samples_in_flight():
    parts = [Part(parameter_bytes=100, saved_bytes=7)] * 3
    plan = make_plan(parts, chain(3, bytes_per_sample=1), batch_size=8)
    # Weights 4 x 100; per sample 7 saved and 1 received (stage 0 receives nothing); 3, 2, 1 in flight.
    assert simulate(plan).peak_bytes == (400 + 3 * 7, 400 + 2 * 8, 400 + 1 * 8)
    gpipe = make_plan(parts, chain(3, bytes_per_sample=1), batch_size=8, schedule="gpipe")
    assert simulate(gpipe).peak_bytes == (400 + 8 * 7, 400 + 8 * 8, 400 + 8 * 8)


def test_replicas_hold_whole_weights_and_a_share_of_activations():
    plan = make_plan([Part(micro_batch=4, degree=2, parameter_bytes=100, saved_bytes=7)], batch_size=8)
    assert simulate(plan).peak_bytes == (400 + 2 * 7, 400 + 2 * 7)


def test_memory_over_time_returns_to_the_weights():
    plan = make_plan([Part(parameter_bytes=1, saved_bytes=10)], batch_size=2)
    memory = [(sample.seconds, sample.bytes) for sample in simulate(plan).memory]
    assert memory == [(0, 14), (3, 14), (6, 4)]


def test_a_stage_that_recomputes_holds_its_activations_once_and_has_a_longer_backward():
    parts = [Part(parameter_bytes=100, saved_bytes=7, recompute="full"), Part(saved_bytes=7, recompute=("s1",))]
    plan = make_plan(parts, chain(2, bytes_per_sample=1), batch_size=2)
    kept = replace(plan, stages=tuple(replace(stage, recompute="none") for stage in plan.stages))
    # Forward and send, s1 twice forward and back without waiting, send, back.
    assert simulate(kept).step_seconds == 1 + 1 + 2 * (1 + 2) + 1 + 2
    trace = simulate(plan)
    assert trace.step_seconds == 1 + 1 + 2 * (1 + 3) + 1 + 3
    # Of s0 nothing stays between forward and backward; while it goes back, from 7 s and from 11 s, its 7 bytes do.
    held = [(sample.seconds, sample.bytes) for sample in trace.memory if sample.device == 0]
    assert held == [(0, 400), (7, 407), (10, 400), (11, 407), (14, 400)]
    # s1 keeps the byte it received while it holds the 7 that its backward computes again.
    assert trace.peak_bytes == (407, 8)
    for device, needed in needed_bytes(plan).items():
        assert trace.peak_bytes[device] == needed


def test_replicas_that_shard_the_optimizer_state_update_their_shares_and_gather_the_weights():
    # Two replicas, a link of 1 byte per second, 8 bytes of weights in one operator of 6 and one of 2.
    plan = sharded("optimizer")
    # A forward and a backward of 2 samples, an all-reduce of 8 bytes, the update of 6 bytes, an all-gather of 8 bytes.
    assert simulate(plan).step_seconds == 2 * 3 + 2 * 4 + 0.5 * 6 + 4
    # Weights and gradients, the optimizer state of 6 bytes of weights, twice their size.
    assert simulate(plan).peak_bytes == (8 + 8 + 2 * 6,) * 2
    assert step_seconds(plan) == simulate(plan).step_seconds


def test_replicas_that_shard_everything_gather_the_weights_before_the_first_task():
    plan = sharded("all")
    # An all-gather, a forward and a backward of 2 samples, a reduce-scatter, the update of half of the weights.
    assert simulate(plan).step_seconds == 4 + 2 * 3 + 4 + 0.5 * 4
    # Whole weights and gradients, and shards of the weights and of the optimizer state.
    assert simulate(plan).peak_bytes == (8 + 8 + 4 + 8,) * 2
    assert step_seconds(plan) == simulate(plan).step_seconds


@pytest.mark.parametrize(("overlap", "tasks"), [(True, 4 + 8), (False, 2 + 4 + 4 + 8)])
def test_layers_gather_their_weights_in_every_task(overlap: bool, tasks: float):
    plan = sharded("layers")
    plan = replace(plan, cluster=replace(plan.cluster, overlap=overlap))
    # All-gathers of 4 seconds in the forward and the backward, and a reduce-scatter in the backward.
    assert simulate(plan).step_seconds == tasks + 0.5 * 4
    # Shards of everything; of the larger operator two layers, gradients and a buffer.
    assert simulate(plan).peak_bytes == (4 * 6 + (8 + 8 + 16) / 2,) * 2
    assert step_seconds(plan) == simulate(plan).step_seconds


def test_the_gather_of_a_late_stage_hides_behind_the_stages_before_it():
    parts = [Part(micro_batch=2, forward=4), Part(micro_batch=2, degree=2, parameter_bytes=8, state="all")]
    plan = make_plan(parts, batch_size=2)
    assert plan.gather_seconds(1) == 4
    assert simulate(plan).step_seconds == 2 * 4 + (1 + 2) + 2 * 2  # as long as without any gather


def sharded(state: State) -> Plan:
    """Return a stage of two operators, with 6 and 2 bytes of weights, on two devices."""
    pair = make_plan(
        [Part(parameter_bytes=6, forward=0.5, backward=1), Part(parameter_bytes=2, forward=0.5, backward=1)],
        batch_size=4,
        optimizer_seconds_per_parameter_byte=0.5,
    )
    stage = replace(pair.stages[0], ops=("s0", "s1"), devices=(0, 1), micro_batch=4, in_flight=4, state=state)
    return replace(pair, stages=(stage,), edges=())


def test_a_given_schedule_is_simulated_instead_and_verified():
    plan = make_plan([Part(in_flight=2), Part(in_flight=2)], batch_size=2)
    text = "schedule hand\n0: F0.0 F0.1 B0.0 B0.1\n1: F1.0 F1.1 B1.0 B1.1\n"
    assert simulate(plan, Schedule.parse(text)).step_seconds == 1 + 1 + 1 + 2 + 2 + 2
    with pytest.raises(InvalidInput, match=r"F1.0"):
        simulate(plan, Schedule.parse(text.replace("F1.0 ", "")))


def test_prediction_is_the_trace_in_three_numbers():
    plan = make_plan([Part(saved_bytes=1), Part()], batch_size=4, device_count=3)
    trace, prediction = simulate(plan), predict(plan)
    assert prediction.step_seconds == trace.step_seconds == 15
    assert prediction.bubble_fraction == pytest.approx(1 / 5)
    assert prediction.peak_bytes == (2, 0, 0)
    assert trace.plan_fingerprint == plan.fingerprint


def test_spans_are_by_device_then_start(three_stages: Plan):
    keys = [(span.device, span.start_seconds) for span in simulate(three_stages).spans]
    assert keys == sorted(keys)


@pytest.fixture
def three_stages() -> Plan:
    return make_plan([Part(micro_batch=2), Part(), Part(micro_batch=4, degree=2)], chain(3, 1.0), batch_size=8)


def shared_front(link: Link | None = None) -> Plan:
    """Two devices share the first operator, and a third computes the second one."""
    graph = layers_in_a_row(layer("a", shards()), layer("b", None))
    stages = (
        HandStage(ops=("a",), devices=(0, 1), tensor=2, micro_batch=1),
        HandStage(ops=("b",), devices=(2,), micro_batch=1),
    )
    plan = plan_by_hand(problem(graph, 4, 2), HandPlan(stages=stages))
    return plan if link is None else replace(plan, cluster=replace(plan.cluster, intra_node=link))


def test_devices_that_share_a_replica_compute_it_together() -> None:
    # Forward of a: 1 + 6 s, and two all-reduces of 20 bytes: 2 (2 x 3 + 2 x 10 / 4) s. A message takes 3 + 4 / 4 s.
    plan = shared_front()
    trace = simulate(plan)
    for device in (0, 1):
        assert times(trace, device, "F", "B") == [("F0", 0, 29), ("F1", 29, 58), ("B0", 70, 77), ("B1", 103, 110)]
    assert times(trace, 2, "F", "B") == [("F0", 33, 44), ("B0", 44, 66), ("F1", 66, 77), ("B1", 77, 99)]
    assert trace.step_seconds == step_seconds(plan) == 99 + 100, "b has 100 bytes to update, each rank of a has 60"
    assert predict(plan).step_seconds == 199
    assert predict(plan).peak_bytes[:3] == tuple(needed_bytes(plan).values())


def test_devices_that_share_a_replica_wait_for_the_last_message() -> None:
    late = PairLink(first="d1", second="d2", link=Link(latency_seconds=13, bandwidth_bytes_per_second=4))
    plan = shared_front()
    plan = replace(plan, cluster=replace(plan.cluster, pair_links=(late,)))
    for device in (0, 1):
        assert times(simulate(plan), device, "B")[0] == ("B0", 66 + 13 + 1, 66 + 13 + 1 + 7)


def test_the_gradients_for_both_devices_pass_through_the_port_of_their_sender() -> None:
    shared = shared_front(Link(latency_seconds=3, bandwidth_bytes_per_second=4, shared=True))
    assert times(simulate(shared), 0, "B")[0] == ("B0", 66 + 3 + 2, 66 + 3 + 2 + 7)
