"""A rehearsal runs every task of the plan in real processes, and takes as long as the simulator predicts."""

import json
import multiprocessing
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import Part, chain, make_plan, share
from processes import descendants, still_running

from graphpipe.cli.main import main
from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import Link
from graphpipe.costs import declare_loads
from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.rehearse.rehearse import rehearse
from graphpipe.run.rehearse.scaled_plan import LEAST_TASK_SECONDS, Limits, changes, scaled_plan, smallest_feasible_scale
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace

LOOPBACK = Link(latency_seconds=1e-4, bandwidth_bytes_per_second=1e9)
EDGES = [(0, 1, 1000.0), (0, 2, 8.0), (1, 3, 8.0), (2, 3, 8.0)]


def branches(schedule: str = "1f1b") -> Plan:
    """Two branches of unequal micro-batches, one of them replicated: five devices."""
    parts = [
        Part(micro_batch=2, parameter_bytes=8.0),
        Part(micro_batch=4, degree=2, parameter_bytes=1e6),
        Part(micro_batch=2),
        Part(micro_batch=2),
    ]
    return make_plan(parts, EDGES, batch_size=8, schedule=schedule, optimizer_seconds_per_parameter_byte=1e-6)


def test_a_scaled_plan_scales_times_and_cuts_bytes() -> None:
    plan, limits = branches(), Limits(scale=0.5, most_bytes=1000.0)
    scaled = scaled_plan(plan, limits, LOOPBACK)
    for stage in plan.stages:
        before = plan.cost_model.task_seconds(stage.ops, 0, 2)
        after = scaled.cost_model.task_seconds(stage.ops, 0, 2)
        assert after.forward == before.forward / 2
        assert after.backward == before.backward / 2
        assert scaled.cost_model.optimizer_seconds(stage.ops) == pytest.approx(
            plan.cost_model.optimizer_seconds(stage.ops) / 2
        )
    assert [edge.bytes_per_sample for edge in scaled.edges] == [500.0, 8.0, 8.0, 8.0]  # two samples in a message
    assert [op.parameter_bytes for op in scaled.graph.ops] == pytest.approx([0.008, 1000.0, 0.0, 0.0])
    assert scaled.cluster.link(0, 4) == LOOPBACK
    assert changes(plan, limits) == [
        "messages on 1 of 4 edges are cut to 1,000 bytes",
        "reduced gradients are cut to 1/1,000 of their bytes",
    ]


def test_limits_above_every_size_do_not_change_the_plan() -> None:
    plan, limits = branches(), Limits(most_bytes=1e7)
    assert changes(plan, limits) == []
    scaled = scaled_plan(plan, limits, plan.cluster.intra_node)
    assert simulate(scaled).step_seconds == simulate(plan).step_seconds
    with pytest.raises(InvalidInput, match="scale: is 0, must be positive"):
        Limits(scale=0)


def test_the_scale_makes_tasks_long_enough() -> None:
    short = scaled_plan(branches(), Limits(scale=1e-3, most_bytes=1.0), LOOPBACK)
    scale = smallest_feasible_scale(simulate(short))
    shortest = min(s.end_seconds - s.start_seconds for s in simulate(short).spans if s.kind in "FB")
    assert scale * shortest >= LEAST_TASK_SECONDS * 0.999
    assert smallest_feasible_scale(simulate(branches())) == 1.0


def check(plan: Plan, predicted: Trace, found: Trace) -> None:
    order = build_schedule(plan)
    for device, tasks in enumerate(order.devices):
        done = [span for span in found.spans if span.device == device and span.kind in "FBIW"]
        assert [f"{span.kind}{span.stage}.{span.micro_batch}" for span in done] == [str(task) for task in tasks]
        assert all(before.end_seconds <= after.start_seconds for before, after in pairwise(done))
    planned = {
        (s.device, s.kind, s.stage): s.end_seconds - s.start_seconds for s in predicted.spans if s.kind in "FBIW"
    }
    for span in found.spans:
        if span.kind in "FBIW":
            assert span.end_seconds - span.start_seconds >= planned[span.device, span.kind, span.stage]
    assert found.source == "emulated"
    assert found.plan_fingerprint == predicted.plan_fingerprint
    # Latencies may be shorter than the simulator's, and a busy machine takes longer.
    assert 0.98 <= found.step_seconds / predicted.step_seconds < 1.6


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_rehearsal_follows_the_schedule_and_takes_as_long_as_predicted(name: str) -> None:
    scaled = scaled_plan(branches(name), Limits(scale=0.01, most_bytes=1000.0), LOOPBACK)
    order = build_schedule(scaled)
    predicted = simulate(scaled, order)
    found = rehearse(scaled, order, [predicted], steps=3, timeout_seconds=60)
    check(scaled, predicted, found)
    moved = [span.bytes for span in found.spans if span.kind == "receive" and span.device in (1, 2) and span.peer == 0]
    assert sum(moved) == 8 * 500  # every sample is sent once, to one of the replicas
    assert {span.kind for span in found.spans if span.device == 1} >= {"reduce", "optimizer", "receive"}
    assert multiprocessing.active_children() == []


def test_a_rehearsal_exchanges_tied_gradients() -> None:
    plan = share(branches(), (0, 1), 2e6)
    limits = Limits(scale=0.01, most_bytes=1000.0)
    assert changes(plan, limits)[-1] == "reduced gradients are cut to 1/2,000 of their bytes"
    scaled = scaled_plan(plan, limits, LOOPBACK)
    assert [each.bytes for each in scaled.tied_gradients] == [1000.0]
    predicted = simulate(scaled)
    found = rehearse(scaled, build_schedule(scaled), [predicted], steps=1, timeout_seconds=60)
    reduced = [sorted(span.device for span in trace.spans if span.kind == "reduce") for trace in (found, predicted)]
    assert reduced == [[0, 1, 1, 2, 2]] * 2


def test_a_rank_that_fails_ends_the_rehearsal_and_is_named() -> None:
    scaled = scaled_plan(make_plan([Part(), Part()], batch_size=2), Limits(scale=0.001), LOOPBACK)
    predicted = simulate(scaled)
    spans = tuple(span for span in predicted.spans if (span.kind, span.device) != ("optimizer", 1))
    with pytest.raises(
        GraphPipeError, match=r"rank 1: KeyError: \(1, 1, 'optimizer', -1\). The other ranks were stopped"
    ):
        rehearse(scaled, build_schedule(scaled), [replace(predicted, spans=spans)], steps=1, timeout_seconds=30)
    assert multiprocessing.active_children() == []


def test_a_rehearsal_that_takes_too_long_ends() -> None:
    scaled = scaled_plan(make_plan([Part(), Part()], batch_size=2), Limits(), LOOPBACK)
    with pytest.raises(GraphPipeError, match=r"rehearsal: did not end within 0.5 s, 2 of 2 ranks still ran"):
        rehearse(scaled, build_schedule(scaled), [simulate(scaled)], timeout_seconds=0.5)
    assert multiprocessing.active_children() == []
    with pytest.raises(InvalidInput, match="steps: is 0"):
        rehearse(scaled, build_schedule(scaled), [simulate(scaled)], steps=0)


def test_the_verb_prints_and_saves_the_difference(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("plan", "trace", "summary")}
    make_plan([Part(), Part()], batch_size=2).save(files["plan"])
    given = ["rehearse", str(files["plan"]), "-o", str(files["trace"]), "--summary", str(files["summary"])]
    assert main([*given, "--steps", "1", "--scale", "0.02", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["step_seconds_planned"] == pytest.approx(9.0)
    # Messages: compare 2; send and receive F0, 2; on device 1 send B0, receive F1, send B1, 3; receive B1, 1; sum 2.
    messages = 10 * Cluster.preset("local:2").intra_node.processor_seconds
    assert printed["step_seconds_predicted"] == pytest.approx(0.18 + messages, rel=1e-3)
    measured = printed["step_seconds_measured"]
    assert printed["difference"] == pytest.approx(measured / printed["step_seconds_predicted"] - 1)
    assert json.loads(files["summary"].read_text())["ranks"] == 2
    trace = Trace.load(files["trace"])  # of the plan, in the plan's own seconds
    assert trace.plan_fingerprint == Plan.load(files["plan"]).fingerprint
    assert (trace.step_seconds, trace.slowdown) == (pytest.approx(measured / 0.02), 0.02)
    assert main(["rehearse", str(files["plan"]), "--scale", "-1"]) == 2
    assert "scale: is -1.0, must be positive and finite" in capfd.readouterr().err


def test_every_step_of_a_rehearsal_has_its_own_samples() -> None:
    plan = make_plan([Part(micro_batch=2, degree=2), Part(micro_batch=2)], batch_size=4)
    loads = declare_loads(plan.graph, {"s0": {1: 0.5, 4: 0.5}})
    scaled = scaled_plan(replace(plan, costs=replace(plan.costs, loads=loads)), Limits(scale=0.02), LOOPBACK)
    order = build_schedule(scaled)
    # The warm-up step takes the last. Of three steps of 9, 36 and 18 units in the first stage, the last is the median.
    steps = [simulate(scaled, order, loads={"s0": each}) for each in ([1] * 4, [4] * 4, [4, 1, 1, 1])]
    found = rehearse(scaled, order, steps, steps=3, timeout_seconds=60)
    slept = {(s.device, s.kind, s.micro_batch): s.end_seconds - s.start_seconds for s in found.spans if s.stage == 0}
    assert slept[0, "F", 0] >= 0.08
    assert 0.02 <= slept[1, "F", 0] < 0.08
    assert 0.04 <= slept[0, "B", 1] < 0.16 <= slept[0, "B", 0]


@pytest.mark.slow
def test_ranks_end_if_the_rehearsal_is_killed(tmp_path: Path) -> None:
    branches().save(tmp_path / "plan.json")
    words = ["rehearse", str(tmp_path / "plan.json"), "--steps", "100000"]
    with subprocess.Popen([sys.executable, "-m", "graphpipe", *words], stderr=subprocess.DEVNULL) as rehearsal:
        end = time.monotonic() + 200
        while len(ranks := descendants(rehearsal.pid)) < 2 + 5:  # the fork server, its tracker, and one rank per device
            assert time.monotonic() < end, "the ranks did not start"
            time.sleep(0.1)
        rehearsal.kill()
    assert still_running(ranks, 5) == []


def test_a_segment_is_rehearsed_with_its_updates() -> None:
    """An update after each mini-batch is a task: it sleeps too, and its gradients are summed before it."""
    parts = [
        Part(micro_batch=2, degree=2, forward=0.01, backward=0.02, parameter_bytes=400.0),
        Part(forward=0.01, backward=0.02),
    ]
    plan = make_plan(parts, chain(2, 1.0), batch_size=4, optimizer_seconds_per_parameter_byte=1e-5)
    plan = with_policy(plan, "stash")
    segment = build_segment(plan, 3)
    found = rehearse(plan, segment, [simulate(plan, segment)], steps=1)
    assert found.batch_size == 12
    updates = [(span.device, span.micro_batch) for span in found.spans if span.kind == "optimizer"]
    assert updates == [(device, number) for device in range(3) for number in range(3)]
    assert sum(span.kind == "reduce" for span in found.spans) == 6
