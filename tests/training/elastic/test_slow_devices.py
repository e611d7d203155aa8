"""A device that becomes slow is planned around if that saves more time than a restart takes."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Curve, estimate
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planning.plan import plan as make_plan
from graphpipe.plans import Plan
from graphpipe.simulator import predict
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.elastic import slow_devices
from graphpipe.training.elastic.first_paces import slow_from_start
from graphpipe.training.elastic.known_slowness import note_slowness, read_slowness
from graphpipe.training.elastic.slow_devices import Replanning, SlowDevices
from graphpipe.training.elastic.slowed_plan import Proposal, propose, slowed
from graphpipe.training.elastic.supervisor import Supervisor
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import PaceEvent, SlowEvent, StartEvent
from graphpipe.training.telemetry.event_log import open_event_log

TIMES = 4.0
LOOK_SECONDS = 0.02


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = plan_of(fan(), fan_batch()[0], STAGES["four"], BATCH)
    edges = tuple(replace(edge, bytes_per_sample=2.0) for edge in found.edges)
    costs = estimate(found.graph, found.cluster)
    curve = Curve(lines=((1.0, 2.0),))  # Estimates of operators so small are 0, and a slow device took no time either.
    rows = (replace(row, forward=curve, input_gradient=curve, weight_gradient=curve) for row in costs.rows)
    return replace(found, costs=replace(costs, rows=tuple(rows)), edges=edges)


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
    assert costs.by_op["stem", kinds[1]].forward.lines == ((4.0, 8.0),)
    assert slowed(plan.cluster, plan.costs, {}) == (plan.cluster, plan.costs)
    (kind,) = plan.cluster.device_types
    launching = replace(plan.cluster, device_types=(replace(kind, launch_seconds=2.0),))
    third = slowed(launching, plan.costs, {"cpu3": 3.0})[0].type_of(3)
    assert third.launch_seconds == 6.0
    assert third.peak_flops_per_second == pytest.approx(usual.peak_flops_per_second / 3, rel=1e-12)
    assert third.memory_bytes_per_second == pytest.approx(usual.memory_bytes_per_second / 3, rel=1e-12)


def test_the_gain_is_what_the_steps_left_save_beyond_a_restart(plan: Plan) -> None:
    slowness = {"cpu1": 50.0}
    found = proposal(plan, slowness)
    cluster, costs = slowed(plan.cluster, plan.costs, slowness)
    present, next_one = (
        predict(each).step_seconds for each in (replace(plan, cluster=cluster, costs=costs), found.plan)
    )
    assert found.share == pytest.approx(1 - next_one / present)
    assert 0.5 < found.share < 1
    assert found.saved_seconds == pytest.approx(found.share * 2.0 * 10)
    assert found.gains
    assert not replace(found, restart_seconds=found.saved_seconds).gains
    assert "so the ranks leave at the next checkpoint" in str(found)
    given = {"step_seconds": 2.0, "steps_left": 10, "restart_seconds": 3.0}
    unknown = replace(found.plan, prediction=None)
    assert propose(plan, slowness, lambda *_: unknown, **given) == replace(found, plan=unknown)  # pyright: ignore[reportArgumentType]
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


def test_a_plan_that_is_slower_than_the_present_one_saves_nothing(plan: Plan) -> None:
    costs = replace(plan.costs, task_overhead_seconds=1e6)
    slower = replace(plan, costs=costs, prediction=None)
    given = {"step_seconds": 2.0, "steps_left": 10, "restart_seconds": 3.0}
    found = propose(plan, {"cpu1": 2.0}, lambda *_: slower, **given)  # pyright: ignore[reportArgumentType]
    assert found is not None
    assert (found.share, found.saved_seconds, found.gains) == (0.0, 0.0, False)


def watcher(plan: Plan, folder: RunFolder, told: list[str]) -> SlowDevices:
    return SlowDevices(
        folder=folder,
        current=lambda: plan,
        replanning=Replanning(
            costs=plan.costs, plan=lambda *new: replanned(plan, *new), use=lambda found: None, steps=10_000, every=10
        ),
        tell=told.append,
    )


def started(plan: Plan) -> StartEvent:
    return StartEvent(
        host="h",
        pid=1,
        device="cpu",
        stages=(),
        plan_fingerprint=plan.fingerprint,
        graphpipe="",
        torch="",
        first_step=1,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 150
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.parametrize(("step", "leaves"), [(12, 20), (19, 20), (20, 30)])
def test_the_ranks_are_asked_to_leave_for_a_better_plan(
    step: int, leaves: int, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_devices, "POLL_SECONDS", LOOK_SECONDS)
    folder, told = RunFolder(tmp_path), list[str]()
    watched = watcher(plan, folder, told)
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    with watched, open_event_log(folder, 1) as log:
        log.write(started(plan))
        log.write(SlowEvent(step=step, steps=5, seconds=50.0, before_seconds=1.0, predicted_seconds=1.0))
        wait_for(folder.leave_request.exists)
        assert not watched.accepted()
        folder.leave_request.unlink()  # as rank 0 does
    assert watched.accepted()
    assert watched.slowness == {"cpu1": 50.0}
    assert watched.found is not None
    assert watched.found.steps_left == 10_000 - leaves  # The checkpoint of this step may have begun.
    assert told == [f"device cpu1 computes 50.0 times as long as before; {watched.found}"]


def pace(seconds: float, predicted_seconds: float, *, steps: int = 5) -> PaceEvent:
    return PaceEvent(step=steps, steps=steps, seconds=seconds, predicted_seconds=predicted_seconds)


def test_a_rank_is_slow_from_the_start_if_it_is_so_compared_with_the_others() -> None:
    # All take twice as long as predicted: they share the machine. Rank 2 takes 4.5 times as long as that.
    usual = {0: pace(0.2, 0.1), 1: pace(0.6, 0.3), 3: pace(1.0, 0.5)}
    assert slow_from_start({**usual, 2: pace(1.8, 0.2)}) == {2: pytest.approx(4.5)}
    assert slow_from_start({**usual, 2: pace(0.4, 0.2)}) == {}
    # Just three times, and not quite; a second in all its steps, and not quite.
    assert slow_from_start({0: pace(2.0, 1.0), 1: pace(6.0, 1.0)}) == {1: pytest.approx(3.0)}
    assert slow_from_start({0: pace(2.0, 1.0), 1: pace(5.9, 1.0)}) == {}
    assert slow_from_start({0: pace(0.5, 0.5), 1: pace(0.75, 0.25, steps=2)}) == {1: pytest.approx(3.0)}
    assert slow_from_start({0: pace(0.5, 0.5), 1: pace(0.75, 0.25, steps=1)}) == {}
    assert slow_from_start({0: pace(2.0, 1.0), 1: pace(1.125, 0.125, steps=1)}) == {}  # 0.25 s are usual
    # A rank that computes nothing, a single rank, and two slow ones of five.
    assert slow_from_start({0: pace(0.0, 0.0), 1: pace(9.0, 1.0)}) == {}
    assert slow_from_start({0: pace(9.0, 1.0)}) == {}
    assert slow_from_start({0: pace(6.0, 1.0), 1: pace(2.0, 1.0)}) == {0: pytest.approx(3.0)}
    assert {*slow_from_start({**usual, 2: pace(1.8, 0.2), 4: pace(9.0, 1.0)})} == {2, 4}


@pytest.mark.parametrize("source", ["profiled", "analytic"])
def test_a_device_that_was_slow_from_the_start_is_planned_around(
    source: Literal["profiled", "analytic"], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank was compared with its own earlier steps only, so nobody noticed it."""
    monkeypatch.setattr(slow_devices, "POLL_SECONDS", LOOK_SECONDS)
    rows = tuple(replace(row, source=source) for row in plan.costs.rows)
    plan = replace(plan, costs=replace(plan.costs, rows=rows))
    folder, told = RunFolder(tmp_path), list[str]()
    watched = watcher(plan, folder, told)
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    with watched, ExitStack() as stack:
        logs = [stack.enter_context(open_event_log(folder, rank)) for rank in range(4)]
        for log in logs:
            log.write(started(plan))
        for log in logs[:3]:
            log.write(pace(1.0, 0.5))
        time.sleep(10 * LOOK_SECONDS)
        assert not told  # The last rank may be as slow as the others.
        logs[3].write(pace(40.0, 0.5))
        if source == "analytic":  # Estimates can be wrong for one rank only.
            time.sleep(10 * LOOK_SECONDS)
            assert not watched.slowness
            return
        wait_for(folder.leave_request.exists)
        folder.leave_request.unlink()
    assert watched.accepted()
    assert watched.slowness == {"cpu3": pytest.approx(40.0)}
    sentence = "device cpu3 computes 40.0 times as long as predicted, compared with the other devices"
    assert told == [f"{sentence}; {watched.found}"]


@pytest.mark.parametrize("replans", [False, True])
def test_a_slow_device_is_named_even_if_the_plan_stays(
    replans: bool, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only elastic runs for which another plan was possible named it."""
    monkeypatch.setattr(slow_devices, "POLL_SECONDS", LOOK_SECONDS)

    def nothing_fits(*_: object) -> Plan:
        raise Infeasible("does not fit")

    rows = tuple(replace(row, source="profiled") for row in plan.costs.rows)
    plan = replace(plan, costs=replace(plan.costs, rows=rows))
    folder, told = RunFolder(tmp_path), list[str]()
    watched = watcher(plan, folder, told)
    assert watched.replanning is not None
    watched.replanning = replace(watched.replanning, plan=nothing_fits) if replans else None
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    with watched, ExitStack() as stack:
        for rank in range(4):
            log = stack.enter_context(open_event_log(folder, rank))
            log.write(started(plan))
            log.write(pace(40.0 if rank == 2 else 1.0, 0.5))
        wait_for(lambda: bool(told))
        time.sleep(5 * LOOK_SECONDS)
    assert told == ["device cpu2 computes 40.0 times as long as predicted, compared with the other devices"]
    assert watched.cause == "device cpu2 has been slow from the first step on"
    assert not watched.accepted()
    assert not folder.leave_request.exists()


def test_only_what_ranks_of_this_launch_say_of_this_plan_counts(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_devices, "POLL_SECONDS", LOOK_SECONDS)
    rows = tuple(replace(row, source="profiled") for row in plan.costs.rows)
    plan = replace(plan, costs=replace(plan.costs, rows=rows))
    folder, told = RunFolder(tmp_path), list[str]()
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    slow = SlowEvent(step=12, steps=5, seconds=50.0, before_seconds=1.0, predicted_seconds=1.0)
    with ExitStack() as stack:
        logs = [stack.enter_context(open_event_log(folder, rank)) for rank in range(4)]
        for event in (started(plan), slow):
            logs[0].write(event)  # before this launch
        with watcher(plan, folder, told) as watched:
            other = replace(started(plan), plan_fingerprint="of another plan")
            for event in (other, slow, pace(40.0, 0.5)):
                logs[1].write(event)
            for rank in (2, 3):
                logs[rank].write(started(plan))
                logs[rank].write(pace(1.0, 0.5))
            logs[0].write(pace(1.0, 0.5))  # Its start was before this launch.
            time.sleep(10 * LOOK_SECONDS)
            assert not told
            time.sleep(0.5)
            logs[0].write(started(plan))  # after a loss, in the same process
            logs[2].write(slow)
            wait_for(folder.leave_request.exists)
    assert watched.slowness == {"cpu2": 50.0}
    assert watched.cause == "device cpu2 has become slow"
    assert watched.found is not None
    assert 0 < watched.found.restart_seconds < 0.5  # as at first


def test_a_device_that_was_slow_from_the_start_can_become_slower(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_devices, "POLL_SECONDS", LOOK_SECONDS)
    rows = tuple(replace(row, source="profiled") for row in plan.costs.rows)
    plan = replace(plan, costs=replace(plan.costs, rows=rows))
    folder, told = RunFolder(tmp_path), list[str]()
    watched = watcher(plan, folder, told)
    assert watched.replanning is not None
    watched.replanning = replace(watched.replanning, steps=10)  # Too few are left for another plan.
    folder.metrics_log.write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": 60.0}) + "\n")
    with watched, ExitStack() as stack:
        logs = [stack.enter_context(open_event_log(folder, rank)) for rank in range(4)]
        for rank, log in enumerate(logs):
            log.write(started(plan))
            log.write(pace(40.0 if rank == 2 else 1.0, 0.5))
        wait_for(lambda: len(told) == 1)
        logs[2].write(SlowEvent(step=9, steps=5, seconds=120.0, before_seconds=40.0, predicted_seconds=0.5))
        wait_for(lambda: len(told) == 2)
    assert watched.slowness == {"cpu2": pytest.approx(120.0)}


def test_measured_speeds_are_kept_for_the_run_that_resumes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_slowness(folder) == {}
    note_slowness(folder, {"cpu1": 4.5, "cpu2": 1e9})
    assert read_slowness(folder) == {"cpu1": 4.5, "cpu2": 1e6}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cpu1": 0.5}', "0.5"),
        ('{"cpu1": 2e6}', "2000000"),
        ('{"cpu1": NaN}', "NaN"),
        ('{"cpu1": "slow"}', "slow"),
        ("[]", "times_as_long"),
    ],
)
def test_speeds_that_no_device_has_are_refused(text: str, message: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    head = '{"graphpipe": "slow-devices", "schema_version": 1, "times_as_long": '
    folder.slow_devices.write_text(head + text + "}")
    with pytest.raises(InvalidInput, match=message) as caught:
        read_slowness(folder)
    assert str(caught.value).startswith(str(folder.slow_devices))
    assert "Delete the file to plan with the speeds of the cluster." in str(caught.value)


@pytest.mark.parametrize(("avoid_slow", "resume"), [(True, True), (False, True), (True, False)])
def test_a_resumed_run_begins_with_a_plan_for_the_measured_speeds(
    avoid_slow: bool, resume: bool, plan: Plan, tmp_path: Path
) -> None:
    """It began with the speeds of the cluster, and had to notice the slow device again."""
    folder = RunFolder(tmp_path)
    note_slowness(folder, {"cpu1": 50.0, "of another cluster": 9.0})
    run, used = list[int](), list[Plan]()
    supervisor = Supervisor(
        folder=folder,
        cluster=plan.cluster,
        start=lambda count, **_: run.append(count),
        replan=lambda _: pytest.fail("it plans with the measured speeds"),
        reroute=lambda *_: None,
        replanning=Replanning(
            costs=plan.costs, plan=lambda *new: replanned(plan, *new), use=used.append, steps=100, every=10
        ),
        settings=RunSettings(elastic=True, avoid_slow=avoid_slow),
        tell=lambda _: None,
    )
    found = supervisor.train(plan, resume=resume)
    assert run == [len(found.used_devices)]
    if not (avoid_slow and resume):
        assert found == plan
        assert not used
        return
    assert used == [found]
    kinds = {device.name: device.type for device in found.cluster.devices}
    assert kinds["cpu1"] == "cpu, 50 times as slow"
    assert kinds["cpu0"] == "cpu"
