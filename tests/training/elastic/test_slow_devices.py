"""A device that becomes slow is planned around if that saves more time than a restart takes."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of

from graphpipe.api import plan as make_plan
from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, estimate
from graphpipe.errors import Infeasible
from graphpipe.plans import Plan
from graphpipe.simulator import predict
from graphpipe.training.elastic.slow_devices import Replanning, SlowDevices
from graphpipe.training.elastic.slowed_plan import Proposal, propose, slowed
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import SlowEvent, StartEvent
from graphpipe.training.telemetry.event_log import open_event_log

TIMES = 4.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = plan_of(fan(), fan_batch()[0], STAGES["four"], BATCH)
    edges = tuple(replace(edge, bytes_per_sample=2.0) for edge in found.edges)
    return replace(found, costs=estimate(found.graph, found.cluster), edges=edges)


def replanned(plan: Plan, cluster: Cluster, costs: CostTable) -> Plan:
    return make_plan(plan.graph, costs, cluster, batch_size=BATCH)


def proposal(plan: Plan, slowness: Mapping[str, float], **changes: float) -> Proposal:
    given = {"step_seconds": 2.0, "steps_left": 10, "restart_seconds": 3.0} | changes
    found = propose(plan, slowness, lambda *new: replanned(plan, *new), **given)  # pyright: ignore[reportArgumentType]
    assert found is not None
    return found


def test_a_slow_device_is_one_of_another_type(plan: Plan) -> None:
    cluster, costs = slowed(plan.cluster, plan.costs, {"cpu1": TIMES, "cpu2": TIMES, "gone": 9.0})
    kinds = [device.type for device in cluster.devices]
    assert kinds == ["cpu", *["cpu, 4 times as slow"] * 2, "cpu"]
    assert [device.name for device in cluster.devices] == [device.name for device in plan.cluster.devices]
    usual, slow = cluster.type_of(0), cluster.type_of(1)
    assert (slow.memory_bytes, slow.host_bandwidth_bytes_per_second) == (
        usual.memory_bytes,
        usual.host_bandwidth_bytes_per_second,
    )
    assert slow.peak_flops_per_second == usual.peak_flops_per_second / TIMES
    assert slow.memory_bytes_per_second == usual.memory_bytes_per_second / TIMES
    assert slow.launch_seconds == usual.launch_seconds * TIMES
    costs.check_for(plan.graph, {*kinds})
    for op in plan.graph.ops:
        before, after = costs.by_op[op.name, "cpu"], costs.by_op[op.name, kinds[1]]
        for curve in ("forward", "input_gradient", "weight_gradient"):
            assert getattr(after, curve)(3) == pytest.approx(TIMES * getattr(before, curve)(3))
    assert slowed(plan.cluster, plan.costs, {}) == (plan.cluster, plan.costs)


def test_the_gain_is_what_the_steps_left_save_beyond_a_restart(plan: Plan) -> None:
    slowness = {"cpu1": 50.0}
    found = proposal(plan, slowness)
    cluster, costs = slowed(plan.cluster, plan.costs, slowness)
    present, next_one = (
        predict(each).step_seconds for each in (replace(plan, cluster=cluster, costs=costs), found.plan)
    )
    assert found.share == pytest.approx(1 - next_one / present)
    assert found.share > 0.5
    assert found.saved_seconds == pytest.approx(found.share * 2.0 * 10)
    assert found.gains
    assert "so the ranks leave at the next checkpoint" in str(found)
    for changes in ({"steps_left": 0}, {"restart_seconds": 21.0}, {"step_seconds": 0.01}):
        kept = proposal(plan, slowness, **changes)
        assert not kept.gains
        assert "so the run stays as it is" in str(kept)


def test_a_plan_with_the_slow_device_is_compared_with_one_without_it(plan: Plan) -> None:
    asked: list[tuple[str, ...]] = []

    def note(cluster: Cluster, costs: CostTable) -> Plan:
        asked.append(tuple(device.name for device in cluster.devices))
        if len(cluster.devices) == 4:
            raise Infeasible("does not fit")
        return replanned(plan, cluster, costs)

    given = {"step_seconds": 2.0, "steps_left": 10, "restart_seconds": 3.0}
    found = propose(plan, {"cpu1": 50.0}, note, **given)  # pyright: ignore[reportArgumentType]
    assert asked == [("cpu0", "cpu1", "cpu2", "cpu3"), ("cpu0", "cpu2", "cpu3")]
    assert found is not None
    assert len(found.plan.cluster.devices) == 3
    every = {device.name: 50.0 for device in plan.cluster.devices}
    assert propose(plan, every, note, **given) is None  # pyright: ignore[reportArgumentType]


def test_the_ranks_are_asked_to_leave_for_a_better_plan(plan: Plan, tmp_path: Path) -> None:
    folder, told = RunFolder(tmp_path), list[str]()
    watched = SlowDevices(
        folder=folder,
        current=lambda: plan,
        replanning=Replanning(
            costs=plan.costs, plan=lambda *new: replanned(plan, *new), use=lambda found: None, steps=10_000, every=10
        ),
        tell=told.append,
    )
    start = StartEvent(
        host="h",
        pid=1,
        device="cpu",
        stages=(),
        plan_fingerprint=plan.fingerprint,
        graphpipe="",
        torch="",
        first_step=1,
    )
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    with watched, open_event_log(folder, 1) as log:
        log.write(start)
        log.write(SlowEvent(step=12, steps=5, seconds=50.0, before_seconds=1.0, predicted_seconds=1.0))
        end = time.monotonic() + 60
        while not folder.leave_request.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not watched.accepted()
        folder.leave_request.unlink()  # as rank 0 does
    assert watched.accepted()
    assert watched.slowness == {"cpu1": 50.0}
    assert watched.found is not None
    assert watched.found.steps_left == 10_000 - 20  # from the next checkpoint on
    assert told == [f"device cpu1 computes 50.0 times as long as before; {watched.found}"]
