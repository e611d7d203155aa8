"""The supervisor of an elastic run decides: which device is lost, when to give up, what is taken back."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.launch.first_failure import RankFailed
from graphpipe.plans import Plan
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.elastic import supervisor as elastic
from graphpipe.training.elastic.membership import devices_of, note_return, run_folder
from graphpipe.training.elastic.readmission import REQUEST, Readmission
from graphpipe.training.elastic.supervisor import Supervisor
from graphpipe.training.run_folder.recoveries import RECOVERIES, Pending, go_on, read_recoveries, stand_still
from graphpipe.training.train_rank import METRICS


def failed(
    rank: int = 1, what: str = "was killed by SIGKILL", kind: str = "", others: tuple[int, ...] = ()
) -> RankFailed:
    return RankFailed(rank, what, kind=kind, host="", seen=time.time() - 5, failed=(rank, *others))


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, ...]]]:
    """Return a function that runs a supervisor whose launches fail as given, and returns the devices of each."""

    def run(*lives: RankFailed | None, **settings: float) -> list[tuple[str, ...]]:
        launched: list[tuple[str, ...]] = []
        plan = plan_of(fan(), fan_batch()[0], STAGES["four"], BATCH)
        current = [plan]

        def launch(entry: str, nproc: int, **_: object) -> None:
            names = tuple(current[0].cluster.devices[device].name for device in current[0].used_devices)
            assert len(names) == nproc
            launched.append(names)
            if len(launched) <= len(lives) and (error := lives[len(launched) - 1]) is not None:
                raise error

        def replan(cluster: Cluster) -> Plan:
            everywhere = replace(plan.stages[0], devices=tuple(range(len(cluster.devices))))
            current[0] = replace(plan, cluster=cluster, stages=(everywhere,), edges=())
            return current[0]

        monkeypatch.setattr(elastic, "launch", launch)
        supervisor = Supervisor(
            directory=tmp_path,
            cluster=plan.cluster,
            replan=replan,
            settings=RunSettings(**{"readmit_seconds": 0.0, **settings}),
            tell=lambda text: None,
        )
        supervisor.train(plan, resume=False)
        return launched

    return run


ALL = ("cpu0", "cpu1", "cpu2", "cpu3")


def without(*gone: int) -> tuple[str, ...]:
    return tuple(name for number, name in enumerate(ALL) if number not in gone)


def test_one_device_after_another_is_lost(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    assert supervise(None) == [ALL]
    # Rank 1 of the second life is the third device.
    assert supervise(failed(1), failed(1), None) == [ALL, without(1), without(1, 2)]
    assert supervise(failed(1, others=(3,)), None) == [ALL, without(1, 3)]


def test_what_would_come_again_ends_the_run(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    for kind in ("InvalidInput", "Infeasible", "NonFiniteLoss", "OutOfMemory", "CheckpointCorrupt"):
        with pytest.raises(RankFailed, match="of no use"):
            supervise(failed(1, "of no use", kind), None)
    # An exception may be the device's fault; twice at the same step it is not. A kill may come twice.
    assert len(supervise(failed(1, "KeyError: 3", "KeyError"), None)) == 2
    with pytest.raises(RankFailed, match="KeyError"):
        supervise(failed(1, "KeyError: 3", "KeyError"), failed(2, "KeyError: 3", "KeyError"), None)
    assert len(supervise(failed(1), failed(1), None)) == 3


def test_an_elastic_run_gives_up(supervise: Callable[..., list[tuple[str, ...]]]) -> None:
    with pytest.raises(RankFailed):
        supervise(failed(0), failed(0), None, most_recoveries=1)
    with pytest.raises(RankFailed):
        supervise(failed(0), failed(0), failed(0), failed(0), None)  # nothing is left


def test_how_long_a_run_stood_still_and_what_it_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go_on(tmp_path, 3)
    assert read_recoveries(tmp_path) == ()
    now = time.time()
    stand_still(tmp_path, Pending(since=now - 7, cause="first", steps_done=9, devices=ALL))
    # It failed again before it could go on.
    stand_still(tmp_path, Pending(since=now, cause="second", steps_done=6, devices=without(1)))
    go_on(tmp_path, 6)
    go_on(tmp_path, 6)
    (found,) = read_recoveries(tmp_path)
    assert (found.cause, found.step, found.steps_lost, found.devices) == ("second", 6, 3, without(1))
    assert 7 <= found.seconds < 17
    assert "training goes on after step 6, 3 steps lost" in capsys.readouterr().err


def test_half_a_recovery_at_the_end_of_the_file_is_passed_over(tmp_path: Path) -> None:
    # A kill while it was written: the run then did all its steps, and could not be ended.
    for number in range(2):
        stand_still(tmp_path, Pending(since=time.time(), cause=f"cause {number}", steps_done=3, devices=ALL))
        go_on(tmp_path, 2)
    file = tmp_path / RECOVERIES
    file.write_text(file.read_text()[:-10])
    assert [found.cause for found in read_recoveries(tmp_path)] == ["cause 0"]
    stand_still(tmp_path, Pending(since=time.time(), cause="cause 2", steps_done=3, devices=ALL))
    go_on(tmp_path, 2)  # on a line of its own
    assert [found.cause for found in read_recoveries(tmp_path)] == ["cause 0", "cause 2"]
    file.write_text("{\n" + file.read_text())
    with pytest.raises(InvalidInput, match=r"recoveries.jsonl, line 1: is not JSON"):
        read_recoveries(tmp_path)


def test_a_rank_that_is_lost_when_the_results_are_written_ends_nothing(
    supervise: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    (tmp_path / METRICS).touch()
    assert supervise(failed(1)) == [ALL]


def test_a_lost_device_is_looked_at_until_it_answers(tmp_path: Path) -> None:
    told: list[str] = []
    # A Python that cannot start stands for a device that does not answer, the first time.
    environments = iter([{"PYTHONHOME": str(tmp_path)}, {}])
    looking = Readmission(
        directory=tmp_path,
        due={"cpu1": time.monotonic()},
        every_seconds=0.01,
        environment=lambda name: next(environments),
        tell=told.append,
    )
    end = time.monotonic() + 60
    with looking:
        while not (tmp_path / REQUEST).exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not looking.left()
        (tmp_path / REQUEST).unlink()  # as rank 0 does
    assert looking.left()
    assert looking.back == ["cpu1"]
    assert told == ["device cpu1 answers again: it is taken back at the next checkpoint"]


def nodes() -> Cluster:
    return Cluster.preset("summit:3x2")


def test_hosts_that_met_stand_for_nodes() -> None:
    cluster = nodes()
    assert devices_of(["a/0", "a/0", "b/1", "b/1", "c/2", "c/2"], cluster) is cluster
    left = devices_of(["a/0", "a/0", "b/1"], cluster)
    assert [device.name for device in left.devices] == [cluster.devices[number].name for number in (0, 1, 2)]
    first, _, third = dict.fromkeys(device.node for device in cluster.devices)
    named = devices_of([f"{third}/0", f"{first}/1", f"{first}/1"], cluster)
    assert [device.node for device in named.devices] == [third, first, first]
    with pytest.raises(InvalidInput, match="4 hosts have come, the cluster has 3 nodes"):
        devices_of(["a/0", "b/1", "c/2", "d/3"], cluster)
    with pytest.raises(InvalidInput, match=r"3 ranks have come on host 'a/0', node .* has 2 devices. Start 2"):
        devices_of(["a/0"] * 3, cluster)


def test_the_folder_of_a_run_that_hosts_share(tmp_path: Path) -> None:
    settings = RunSettings(directory="runs", name="digits")
    given = {"TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert run_folder(settings, given) == Path("runs/digits-job-7")
    for name in ("none", "../../etc", "a/b", ".."):
        with pytest.raises(InvalidInput, match=r"is no name for the run's folder\. Give torchrun --rdzv-id NAME"):
            run_folder(settings, given | {"TORCHELASTIC_RUN_ID": name})
    with pytest.raises(InvalidInput, match="Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun"):
        run_folder(settings, given | {"TORCHELASTIC_USE_AGENT_STORE": "True"})


def test_a_run_that_had_begun_stands_still_until_its_hosts_meet(tmp_path: Path) -> None:
    note_return(tmp_path, nodes())
    go_on(tmp_path, 0)
    assert read_recoveries(tmp_path) == ()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "seconds": 1.0}\n')
    note_return(tmp_path, nodes())
    go_on(tmp_path, 0)
    assert [found.steps_lost for found in read_recoveries(tmp_path)] == [1]
