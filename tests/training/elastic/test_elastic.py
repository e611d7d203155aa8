"""The supervisor of an elastic run: which device is lost, when the run ends, which device is used again."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.launch.first_failure import RankFailed
from graphpipe.plans import Plan
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.elastic.membership import devices_of, note_restart, shared_folder
from graphpipe.training.elastic.readmission import Readmission
from graphpipe.training.elastic.supervisor import Supervisor
from graphpipe.training.run_folder.recoveries import (
    Interruption,
    note_interruption,
    note_recovery,
    read_recoveries,
)
from graphpipe.training.run_folder.run_folder import RunFolder


def failed(
    rank: int = 1, what: str = "was killed by SIGKILL", kind: str = "", others: tuple[int, ...] = ()
) -> RankFailed:
    return RankFailed(rank, what, kind=kind, host="", seen=time.monotonic() - 5, failed=(rank, *others))


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., list[tuple[str, ...]]]:
    """Return a function that runs a supervisor with failing launches, and returns the devices of each launch."""

    def run(*failures: RankFailed | None, **settings: Any) -> list[tuple[str, ...]]:
        launched: list[tuple[str, ...]] = []
        plan = plan_of(fan(), fan_batch()[0], STAGES["four"], BATCH)
        current = [plan]

        def launch(nproc: int, **_: object) -> None:
            names = tuple(current[0].cluster.devices[device].name for device in current[0].used_devices)
            assert len(names) == nproc
            launched.append(names)
            if len(launched) <= len(failures) and (error := failures[len(launched) - 1]) is not None:
                raise error

        def replan(cluster: Cluster) -> Plan:
            everywhere = replace(plan.stages[0], devices=tuple(range(len(cluster.devices))))
            current[0] = replace(plan, cluster=cluster, stages=(everywhere,), edges=())
            return current[0]

        supervisor = Supervisor(
            folder=RunFolder(tmp_path),
            cluster=plan.cluster,
            start=launch,
            replan=replan,
            reroute=lambda plan, lost: None,
            settings=replace(RunSettings(readmit_seconds=0.0), **settings),
            tell=lambda text: None,
        )
        supervisor.train(plan, resume=False)
        return launched

    return run


ALL = ("cpu0", "cpu1", "cpu2", "cpu3")


def without(*gone: int) -> tuple[str, ...]:
    return tuple(name for number, name in enumerate(ALL) if number not in gone)


def test_devices_are_lost_one_after_another(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    assert supervise(None) == [ALL]
    # Rank 1 of the second launch is the third device.
    assert supervise(failed(1), failed(1), None) == [ALL, without(1), without(1, 2)]
    assert supervise(failed(1, others=(3,)), None) == [ALL, without(1, 3)]


def test_a_device_that_is_lost_again_stays_out_for_twice_as_long(tmp_path: Path) -> None:
    plan = plan_of(fan(), fan_batch()[0], STAGES["four"], BATCH)
    failures = iter([failed()])

    def launch(*_: object, **__: object) -> None:
        if (error := next(failures, None)) is not None:
            raise error

    for earlier, wanted in ((0, 1000.0), (1, 2000.0), (3, 8000.0)):
        failures = iter([failed()])
        supervisor = Supervisor(
            folder=RunFolder(tmp_path),
            cluster=plan.cluster,
            start=launch,
            replan=lambda _: plan,
            reroute=lambda plan, lost: None,
            settings=RunSettings(readmit_seconds=1000.0),
            tell=lambda text: None,
            losses=Counter({"cpu1": earlier}),
        )
        begun = time.monotonic()
        supervisor.train(plan, resume=False)
        assert supervisor.losses == {"cpu1": earlier + 1}
        assert begun + wanted <= supervisor.probe_at["cpu1"] <= time.monotonic() + wanted


def test_errors_that_would_recur_end_the_run(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    # Python ran out of memory while a checkpoint was loaded, and the run went on with fewer devices.
    for kind in ("InvalidInput", "Infeasible", "NonFiniteLoss", "OutOfMemory", "MemoryError", "CheckpointCorrupt"):
        with pytest.raises(RankFailed, match="of no use"):
            supervise(failed(1, "of no use", kind), None)
    # An exception may be the device's fault, but not if it occurs twice at the same step. A kill may occur twice.
    assert len(supervise(failed(1, "KeyError: 3", "KeyError"), None)) == 2
    with pytest.raises(RankFailed, match="KeyError"):
        supervise(failed(1, "KeyError: 3", "KeyError"), failed(2, "KeyError: 3", "KeyError"), None)
    assert len(supervise(failed(1), failed(1), None)) == 3


def test_an_elastic_run_ends_after_too_many_losses(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    with pytest.raises(RankFailed):
        supervise(failed(0), failed(0), None, most_recoveries=1)
    with pytest.raises(RankFailed):
        supervise(failed(0), failed(0), failed(0), failed(0), None)  # no device is left


def test_a_recovery_has_the_lost_time_and_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_recovery(RunFolder(tmp_path), 3)
    assert read_recoveries(RunFolder(tmp_path)) == ()
    """The clock was set back by two hours while a run recovered, and the recovery "took" -7163 s."""
    now = time.monotonic()
    note_interruption(RunFolder(tmp_path), Interruption.of(now - 7, cause="first", steps_done=9, devices=ALL))
    # The run failed again before it continued.
    note_interruption(RunFolder(tmp_path), Interruption.of(now, cause="second", steps_done=6, devices=without(1)))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 7200)
    note_recovery(RunFolder(tmp_path), 6)
    note_recovery(RunFolder(tmp_path), 6)
    (found,) = read_recoveries(RunFolder(tmp_path))
    assert (found.cause, found.step, found.steps_lost, found.devices) == ("second", 6, 3, without(1))
    assert 7 <= found.seconds < 17
    assert "training continues after step 6, 3 steps lost" in capsys.readouterr().err
    # Another machine continues, and has only the date.
    elsewhere = replace(Interruption.of(now, cause="third", steps_done=6, devices=ALL), clock="another machine")
    note_interruption(RunFolder(tmp_path), replace(elsewhere, since=clock()))
    note_recovery(RunFolder(tmp_path), 6)
    assert read_recoveries(RunFolder(tmp_path))[-1].seconds == 0


def test_a_truncated_recovery_at_the_end_of_the_file_is_skipped(tmp_path: Path) -> None:
    # The run was killed while it wrote a line. It could then not end after its last step.
    for number in range(2):
        note_interruption(
            RunFolder(tmp_path), Interruption.of(time.monotonic(), cause=f"cause {number}", steps_done=3, devices=ALL)
        )
        note_recovery(RunFolder(tmp_path), 2)
    file = RunFolder(tmp_path).recoveries
    file.write_text(file.read_text()[:-10])
    assert [found.cause for found in read_recoveries(RunFolder(tmp_path))] == ["cause 0"]
    note_interruption(
        RunFolder(tmp_path), Interruption.of(time.monotonic(), cause="cause 2", steps_done=3, devices=ALL)
    )
    note_recovery(RunFolder(tmp_path), 2)  # on a new line
    assert [found.cause for found in read_recoveries(RunFolder(tmp_path))] == ["cause 0", "cause 2"]
    file.write_text("{\n" + file.read_text())
    with pytest.raises(InvalidInput, match=r"recoveries.jsonl, line 1: is not JSON"):
        read_recoveries(RunFolder(tmp_path))


def test_losing_a_rank_after_the_results_are_written_is_not_an_error(
    supervise: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    RunFolder(tmp_path).metrics.touch()
    assert supervise(failed(1)) == [ALL]


def test_a_lost_device_is_probed_until_it_answers(tmp_path: Path) -> None:
    told: list[str] = []
    # The first probe's Python cannot start, like a device that does not answer.
    environments = iter([{"PYTHONHOME": str(tmp_path)}, {}])
    looking = Readmission(
        folder=RunFolder(tmp_path),
        probe_at={"cpu1": time.monotonic()},
        every_seconds=0.01,
        environment=lambda name: next(environments),
        tell=told.append,
    )
    end = time.monotonic() + 60
    with looking:
        while not RunFolder(tmp_path).leave_request.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not looking.accepted()
        RunFolder(tmp_path).leave_request.unlink()  # as rank 0 does
    assert looking.accepted()
    assert looking.back == ["cpu1"]
    assert told == ["device cpu1 answers again: it will be used after the next checkpoint"]


def nodes() -> Cluster:
    return Cluster.preset("summit:3x2")


def test_joined_hosts_stand_for_nodes() -> None:
    cluster = nodes()
    assert devices_of(["a/0", "a/0", "b/1", "b/1", "c/2", "c/2"], cluster) is cluster
    left = devices_of(["a/0", "a/0", "b/1"], cluster)
    assert [device.name for device in left.devices] == [cluster.devices[number].name for number in (0, 1, 2)]
    first, _, third = dict.fromkeys(device.node for device in cluster.devices)
    named = devices_of([f"{third}/0", f"{first}/1", f"{first}/1"], cluster)
    assert [device.node for device in named.devices] == [third, first, first]
    with pytest.raises(InvalidInput, match="4 hosts have joined, the cluster has 3 nodes"):
        devices_of(["a/0", "b/1", "c/2", "d/3"], cluster)
    with pytest.raises(InvalidInput, match=r"3 ranks have joined on host 'a/0', node .* has 2 devices. Start 2"):
        devices_of(["a/0"] * 3, cluster)


def test_the_folder_that_the_hosts_of_a_run_share(tmp_path: Path) -> None:
    settings = RunSettings(directory="runs", name="digits")
    given = {"TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert shared_folder(settings, given) == RunFolder(Path("runs/digits-job-7"))
    for name in ("none", "../../etc", "a/b", ".."):
        with pytest.raises(InvalidInput, match=r"cannot name the run's folder\. Give torchrun --rdzv-id NAME"):
            shared_folder(settings, given | {"TORCHELASTIC_RUN_ID": name})
    with pytest.raises(InvalidInput, match="Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun"):
        shared_folder(settings, given | {"TORCHELASTIC_USE_AGENT_STORE": "True"})


def test_a_run_that_had_begun_is_interrupted_until_its_hosts_join(tmp_path: Path) -> None:
    note_restart(RunFolder(tmp_path), nodes())
    note_recovery(RunFolder(tmp_path), 0)
    assert read_recoveries(RunFolder(tmp_path)) == ()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "seconds": 1.0}\n')
    note_restart(RunFolder(tmp_path), nodes())
    note_recovery(RunFolder(tmp_path), 0)
    assert [found.steps_lost for found in read_recoveries(RunFolder(tmp_path))] == [1]
