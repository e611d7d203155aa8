"""`graphpipe doctor` checks the machine, and names a remedy for every shortage."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphpipe import host_memory
from graphpipe.doctor import Finding
from graphpipe.doctor import check_machine as module
from graphpipe.doctor.check_machine import (
    check_clock,
    check_cores,
    check_import_name,
    check_machine,
    check_memory,
    check_python,
    check_shared_memory,
    check_temporary_files,
)
from graphpipe.host_memory import available_host_bytes


def check_finding(finding: Finding, status: str, *parts: str) -> None:
    """Check the status and the text of a finding, and that it has a remedy unless the status is `fine`."""
    assert finding.status == status
    assert all(part in f"{finding.what} {finding.remedy}" for part in parts), finding
    assert bool(finding.remedy) == (status != "fine")


def test_this_machine_passes_every_check() -> None:
    found = check_machine()
    assert [finding.name for finding in found] == [
        *("python", "package", "cores", "memory", "shared memory", "temporary files", "clock")
    ]
    assert not [finding for finding in found if finding.status == "problem"]


def test_an_unsupported_python_is_found() -> None:
    check_finding(check_python((3, 11, 0)), "fine", "3.11.0")
    check_finding(check_python((3, 10, 9)), "problem", "3.10.9, needs 3.11", "Install Python 3.11")


def test_too_few_cores_and_other_load_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "getloadavg", lambda: (2.9, 0.0, 0.0))
    check_finding(check_cores(2, 2), "fine", "2 for this process")
    check_finding(check_cores(2, 3), "warning", "fewer than 3 ranks")
    monkeypatch.setattr(module.os, "getloadavg", lambda: (3.1, 0.0, 0.0))
    check_finding(check_cores(2, 2), "warning", "load 3.1: other work takes them", "wait")


def test_too_little_memory_for_the_ranks_is_found() -> None:
    check_finding(check_memory(512 * 2**20, 2), "fine", "512 MiB available")
    check_finding(check_memory(512 * 2**20 - 1, 2), "problem", "2 ranks without any model take 512 MiB")


def test_too_little_shared_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_finding(check_shared_memory(tmp_path / "nowhere"), "fine", "no ")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * 2**20 - 1))
    check_finding(check_shared_memory(tmp_path), "warning", "--shm-size")


def test_temporary_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_finding(check_temporary_files(), "fine", tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    check_finding(check_temporary_files(), "problem", "No such file", "TMPDIR")


@pytest.mark.parametrize(
    ("times", "status", "part"),
    [
        ([0.0, 0.0, 1e-6, 1.5e-6], "fine", "steps by 500 ns"),
        ([0.0, 0.02, 0.04, 0.06], "warning", "steps by 20.0 ms"),
        ([0.0, 1e-6, 0.5e-6, 2e-6], "warning", "goes back"),
    ],
)
def test_a_coarse_or_backward_clock_is_found(
    times: list[float], status: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([*times, *[times[-1]] * 2000])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    check_finding(check_clock(), status, part)


def test_a_containers_memory_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert available_host_bytes() > 1e6
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 50000\n")
    assert available_host_bytes() == 650_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_host_bytes() > 1e6


def test_another_distribution_with_our_package_is_a_problem() -> None:
    # An older, abandoned project of this name is on the index. Whichever is installed last overwrites the other.
    assert check_import_name(["graphpipe-torch"]).status == "fine"
    both = check_import_name(["graphpipe", "graphpipe-torch"])
    assert (both.status, both.what) == ("problem", "graphpipe brings a package 'graphpipe' too")
    assert both.remedy.startswith("pip uninstall graphpipe && ")


def test_the_first_import_warns_of_the_other_distribution(tmp_path: Path) -> None:
    metadata = tmp_path / "graphpipe-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: graphpipe\nVersion: 0.0.1\n")
    program = f"import sys; sys.path.append({str(tmp_path)!r}); import graphpipe"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "another distribution, 'graphpipe'" in ran.stderr
    ran = subprocess.run([sys.executable, "-c", "import graphpipe"], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
