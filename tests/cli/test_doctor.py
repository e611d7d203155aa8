"""`graphpipe doctor`: its findings and exit codes."""

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_cases import Run, torchrun
from fake_device import FakeKind

from graphpipe.cli import doctor
from graphpipe.devices import registry
from graphpipe.doctor import Finding, check_ranks, first_minutes
from graphpipe.doctor.check_machine import check_python
from graphpipe.doctor.first_minutes import StepResult
from graphpipe.errors import GraphPipeError

CHECKS = {
    *("python", "cores", "memory", "shared memory", "temporary files", "clock", "torch", "gloo", "GPUs"),
    *("loopback", "host name"),
}


@pytest.mark.usefixtures("forked_ranks")
def test_this_machine_and_the_ranks_are_checked(run: Run) -> None:
    ran = run("doctor", "--ranks", 2, "--json")
    assert ran.code == 0, ran.err
    found = {finding["name"]: finding for finding in ran.json["findings"]}
    assert ran.json["ok"]
    assert CHECKS | {"ranks", "versions"} <= found.keys()
    assert found["ranks"]["what"].startswith("2 over gloo")
    assert "Installation" in ran.err


def test_a_problem_is_shown_with_its_remedy_and_exit_code_2(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("doctor", "--port", taken.getsockname()[1])
    assert ran.code == 2
    line = next(line for line in ran.out.splitlines() if line.startswith("loopback"))
    assert "problem" in line
    assert "Choose another" in line
    assert ran.out.splitlines()[-1].startswith("1 problem")


@pytest.mark.parametrize("crash", [False, True])
def test_the_first_minutes_are_shown_and_written(
    crash: bool, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def steps(cluster: str, devices: int, training: Path, folder: Path, command: object) -> Iterator[StepResult]:
        assert (cluster, devices, training.is_file()) == (str(folder / "this-machine.toml"), 2, True)
        step = StepResult(name="links", command="c", expected="10 GB/s", found="9 GB/s", status="as expected")
        yield step
        yield replace(step, name="training", status="differs") if crash else replace(step, status="skipped")

    monkeypatch.setattr(registry, "usable_accelerator", lambda: FakeKind("meta"))
    monkeypatch.setattr(first_minutes, "first_minutes", steps)
    ran = run("doctor", "--gpu", "-o", tmp_path / "minutes", "--json")
    assert ran.code == (4 if crash else 0), ran.err
    assert "as expected  links: expected 10 GB/s; found 9 GB/s" in ran.err
    written = json.loads((tmp_path / "minutes" / "first-minutes.json").read_text())
    assert written["steps"] == ran.json["steps"]
    assert (written["ok"], len(written["steps"])) == (not crash, 2)
    assert {"python", "torch"} <= {finding["name"] for finding in written["machine"]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
def test_a_machine_without_gpus_says_so(run: Run, tmp_path: Path) -> None:
    ran = run("doctor", "--gpu", "-o", tmp_path / "minutes")
    assert ran.code == 2
    assert "This machine has no GPU that torch can use" in ran.out
    assert not (tmp_path / "minutes").exists()


def test_a_torch_that_cannot_be_imported_is_a_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphpipe.doctor.check_torch", None)
    ran = run("doctor", "--ranks", 2, "--json")
    assert ran.code == 2
    found = {finding["name"]: finding for finding in ran.json["findings"]}
    assert found["torch"]["status"] == "problem"
    assert "cannot be imported" in found["torch"]["what"]
    assert "ranks" not in found  # there is no point in starting them


def test_ranks_that_fail_exit_with_4(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise GraphPipeError("was killed by SIGKILL", where="rank 1", remedy="The other ranks were stopped.")

    monkeypatch.setattr(check_ranks, "launch", fail)
    ran = run("doctor", "--ranks", 2, "--json")
    assert ran.code == 4
    assert ran.json["findings"][-1]["what"] == "rank 1: was killed by SIGKILL"


def test_a_warning_exits_with_0(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = Finding(name="cores", status="warning", what="few", remedy="Get more.")
    monkeypatch.setattr(doctor, "_check_here", lambda *_: [check_python((3, 12)), warning])
    ran = run("doctor")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "1 warning"


def test_a_bad_number_of_ranks(run: Run) -> None:
    ran = run("doctor", "--ranks", -1)
    assert ran.code == 2
    assert "--ranks: is -1" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_under_torchrun_every_rank_checks_and_rank_0_shows_the_findings() -> None:
    done = torchrun(2, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {finding["name"] for finding in json.loads(done.stdout)["findings"]}
    assert CHECKS | {"ranks", "versions"} <= found
