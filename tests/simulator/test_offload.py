"""Offloading in the simulator, against arithmetic by hand."""

from dataclasses import replace

import pytest
from builders import Part, make_plan

from graphpipe.cluster import HostMemory, Link
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import host_bytes, needed_bytes
from graphpipe.plans.verify import verify
from graphpipe.plans.verify_memory import check_memory
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate


def two_stages(saved: float, *, offloads: bool = True, overlap: bool = True) -> Plan:
    """Forward 1 s, backward 2 s; the first stage keeps 3 of 4 micro-batches in flight. 2 B/s to the host."""
    first = Part(saved_bytes=saved, offloads=offloads, in_flight=3)
    return make_plan([first, Part()], batch_size=4, schedule="1f1b", overlap=overlap)


def spans(plan: Plan, kind: str) -> list[tuple[int, float, float]]:
    found = [span for span in simulate(plan).spans if span.kind == kind]
    return [(span.micro_batch, span.start_seconds, span.end_seconds) for span in found]


def test_copies_run_beside_tasks():
    plan = two_stages(2.0)  # a copy takes 1 s
    verify_lowered(plan, build_schedule(plan), lower(plan, build_schedule(plan)))
    # stage 0   F0 0-1, F1 1-2, F2 2-3, B0 4-6, F3 6-7, B1 7-9, B2 10-12, B3 13-15
    assert spans(plan, "evict") == [(0, 1.0, 2.0), (1, 2.0, 3.0), (2, 3.0, 4.0), (3, 7.0, 8.0)]
    # 0 comes after 1 has left, while F2 runs. 1, 2 and 3 come while F3, B1 and the wait for B2 run.
    assert spans(plan, "fetch") == [(0, 3.0, 4.0), (1, 6.0, 7.0), (2, 8.0, 9.0), (3, 9.0, 10.0)]


def test_devices_that_share_a_replica_copy_beside_the_same_tasks():
    # A task of such devices begins when the last of them has come to it. Its copies once looked for it before.
    alone = make_plan([Part(saved_bytes=2.0, offloads=True, in_flight=3, degree=2), Part()], batch_size=4)
    shared = replace(alone, stages=(replace(alone.stages[0], tensor=2), alone.stages[1]))
    for kind in ("evict", "fetch"):
        assert sorted(spans(shared, kind)) == sorted(2 * spans(two_stages(2.0), kind))


def test_slow_copies_delay_the_step_and_free_memory():
    kept, quick, slow = (step_seconds(two_stages(*each)) for each in ((0.0,), (0.2,), (40.0,)))
    assert kept <= quick < kept + 0.5
    assert slow > kept + 20
    plan = two_stages(40.0)
    assert predict(plan).step_seconds == slow
    assert needed_bytes(plan)[0] == 80  # two micro-batches of 40 bytes, not three
    assert needed_bytes(two_stages(40.0, offloads=False))[0] == 120
    assert predict(plan).peak_bytes[0] <= 80
    assert host_bytes(plan) == {"n0": 120}


def test_a_copy_back_begins_when_the_copy_out_has_ended():
    # stage 0   F0 0-1, F1 1-2, B0 41-43, B1 61-63; a copy takes 20 s
    plan = make_plan([Part(saved_bytes=40.0, offloads=True, in_flight=2), Part()], batch_size=2)
    assert spans(plan, "evict") == [(0, 1.0, 21.0), (1, 21.0, 41.0)]
    assert spans(plan, "fetch") == [(0, 21.0, 41.0), (1, 41.0, 61.0)]
    assert step_seconds(plan) == 63


def test_a_device_that_copies_itself_computes_later():
    assert step_seconds(two_stages(2.0)) == 15  # the second stage is busy from 1 to 13
    assert step_seconds(two_stages(2.0, overlap=False)) == 4 * (1 + 2) + 8 * 1  # the first stage never waits


def test_a_backward_right_after_its_forward_needs_no_copy():
    plan = make_plan([Part(), Part(saved_bytes=8.0, offloads=True)], batch_size=4)
    assert spans(plan, "evict") == spans(plan, "fetch") == []


def test_a_copy_has_the_bytes_of_a_micro_batch_on_one_replica():
    parts = [Part(micro_batch=4, degree=2, saved_bytes=3.0, offloads=True, in_flight=16), Part(micro_batch=4)]
    plan = make_plan(parts, batch_size=16, schedule="gpipe")
    copies = [span for span in simulate(plan).spans if span.kind == "evict"]
    assert {span.bytes for span in copies} == {3.0 * 4 / 2}
    assert {span.end_seconds - span.start_seconds for span in copies} == {6.0 / 2}
    assert predict(plan).peak_bytes[:2] == (2 * 6.0, 2 * 6.0)  # one is computed while the one before it leaves


def test_a_copy_to_a_neighbour_waits_for_its_forward_only():
    """The copy of F0 begins at 1, although the device computes F1 then; without overlap it is busy with the copy."""
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    parts = [Part(saved_bytes=2.0, offloads=True, in_flight=3, neighbour=1), Part()]
    plan = make_plan(parts, [], batch_size=3, schedule="gpipe", link=link)
    assert spans(plan, "evict")[:2] == [(0, 1.0, 3.0), (1, 3.0, 5.0)]
    busy = make_plan(parts, [], batch_size=3, schedule="gpipe", link=link, overlap=False)
    assert spans(busy, "evict")[0][0] == 0
    assert all(end - start == 2.0 for _, start, end in (*spans(busy, "evict"), *spans(busy, "fetch")))


def test_a_neighbour_holds_what_is_offloaded_and_the_link_carries_it():
    parts = [Part(saved_bytes=2.0, offloads=True, in_flight=3, neighbour=1), Part()]
    plan = make_plan(parts, batch_size=4, link=Link(latency_seconds=0.0, bandwidth_bytes_per_second=4.0))
    verify(plan)
    verify_lowered(plan, build_schedule(plan), lower(plan, build_schedule(plan)))
    assert [start for _, start, _ in spans(plan, "evict")] == [1.0, 2.0, 3.0, 7.5]
    # The neighbour sends 0 when its B0 has ended, although F2 has ended before: the schedule lists it there.
    assert [start for _, start, _ in spans(plan, "fetch")] == [4.0, 7.0, 8.0, 10.0]
    assert needed_bytes(plan) == {0: 4.0, 1: 6.0}
    assert host_bytes(plan) == {"n0": 0.0}
    trace = simulate(plan)
    assert max(each.bytes for each in trace.memory if each.device == 1) == 6.0
    assert trace.memory[-1].bytes == 0.0
    assert step_seconds(plan) == 15  # as with copies to the node, which take 1 s each


def test_what_rests_on_a_neighbour_must_fit_there():
    plan = make_plan([Part(saved_bytes=40.0, offloads=True, in_flight=3, neighbour=1), Part(parameter_bytes=10.0)])
    room = needed_bytes(plan)[1]
    check_memory(with_memory(plan, room))
    with pytest.raises(Infeasible, match=r"stage 's0' and 's1' needs .* on device 'd1'"):
        check_memory(with_memory(plan, room - 1))


def test_of_what_is_offloaded_two_micro_batches_are_on_the_device():
    plan = make_plan([Part(micro_batch=4, saved_bytes=10.0, offloads=True, in_flight=12), Part()], batch_size=12)
    assert needed_bytes(plan)[0] == 2 * 4 * 10
    check_memory(with_memory(plan, 80))
    with pytest.raises(Infeasible, match=r"\(1 bytes\) short"):
        check_memory(with_memory(plan, 79))


def replicated() -> Plan:
    """Return two stages of two replicas. Those of the first save 40 bytes per sample and keep 3 samples in flight."""
    first = Part(micro_batch=2, degree=2, saved_bytes=40.0, offloads=True, in_flight=6)
    return make_plan([first, Part(micro_batch=2, degree=2, parameter_bytes=10.0)], batch_size=8)


def test_every_replica_offloads_the_samples_that_it_keeps_itself():
    plan = replicated()
    room = [replace(plan.cluster, host_memory=(HostMemory(node="n0", bytes=count),)) for count in (240.0, 239.0)]
    assert host_bytes(plan) == {"n0": 2 * 3 * 40}
    verify(replace(plan, cluster=room[0]))
    with pytest.raises(Infeasible, match=r"\(1 bytes\) short"):
        verify(replace(plan, cluster=room[1]))


def test_every_replica_offloads_to_its_own_neighbour():
    plan = replicated()
    own = needed_bytes(plan)[2]
    offloading = replace(plan, stages=(replace(plan.stages[0], offload_to=(2, 3)), plan.stages[1]))
    assert needed_bytes(offloading)[2] == needed_bytes(offloading)[3] == own + 3 * 40
    check_memory(with_memory(offloading, own + 120))
    with pytest.raises(Infeasible, match=r"'s0' and 's1' needs .* on device 'd2', .*\(1 bytes\) short"):
        check_memory(with_memory(offloading, own + 119))


def with_memory(plan: Plan, count: float) -> Plan:
    kinds = (replace(plan.cluster.device_types[0], memory_bytes=count),)
    return replace(plan, cluster=replace(plan.cluster, device_types=kinds))


def test_what_is_offloaded_must_fit_in_the_node():
    plan = two_stages(40.0)
    short = replace(plan.cluster, host_memory=(HostMemory(node="n0", bytes=100.0),))
    message = r"stage 's0' offloads 120 B to the memory of node 'n0', which has 100 B for it: 20 B \(20 bytes\) short"
    with pytest.raises(Infeasible, match=message):
        verify(replace(plan, cluster=short))
    verify(replace(plan, cluster=replace(plan.cluster, host_memory=(HostMemory(node="n0", bytes=120.0),))))
    with pytest.raises(Infeasible, match=r"\(0 bytes\) short"):
        verify(replace(plan, cluster=replace(plan.cluster, host_memory=(HostMemory(node="n0", bytes=119.5),))))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recompute": "full"}, "the stage recomputes everything, so nothing is left to offload"),
        ({"offload": ("s1",)}, "'s1' is not an operator of the stage"),
        ({"recompute": ("s0",)}, r"operator 's0' is in both 's0' and 's0' \(offload and recompute\)"),
        ({"offload": (), "offload_to": (1,)}, "names neighbours, but the stage offloads nothing"),
        ({"offload_to": (1, 1)}, "names 2 neighbours, but the stage has 1 devices"),
        ({"offload_to": (0,)}, "device 0 is its own neighbour"),
        ({"offload_to": (2,)}, r"device 2 hosts no stage of the plan\. Choose one of \[1\]\."),
    ],
)
def test_a_stage_that_cannot_offload_is_refused(changes: dict[str, object], sentence: str):
    plan = two_stages(1.0)
    with pytest.raises(InvalidInput, match=sentence):
        verify(replace(plan, stages=(replace(plan.stages[0], **changes), plan.stages[1])))
