"""What NVIDIA's tools and the kernel say of links, read from what they print."""

import os
import resource
from pathlib import Path

import pytest

from graphpipe.doctor import check_links
from graphpipe.doctor.check_links import (
    check_driver,
    check_infiniband,
    check_limits,
    check_topology,
    infiniband_ports,
    ways_between,
)

HGX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t56-111\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
"""
PCIE = HGX.replace("GPU0\t X \tNV18\tNV18", "GPU0\t X \tPHB\tSYS").replace("GPU1\tNV18\t X ", "GPU1\tPHB\t X ")


def test_nvlink_between_all_gpus_is_fine() -> None:
    assert ways_between(HGX) == {(0, 1): "NV18", (0, 2): "NV18", (1, 2): "NV18"}
    (finding,) = check_topology(HGX)
    assert (finding.status, finding.what) == ("fine", "between all GPUs (NV18)")


def test_the_worst_pair_without_nvlink_is_named() -> None:
    (finding,) = check_topology(PCIE)
    expected = "missing between 2 of 3 pairs: GPU 0 reaches 2 over two processors (SYS)"
    assert (finding.status, finding.what) == ("warning", expected)
    assert check_topology(None) == check_topology("\tGPU0\nGPU0\t X \t0-7") == []


def test_a_driver_that_does_not_answer_is_a_problem() -> None:
    assert check_driver("570.86.15\n570.86.15\n").what == "570.86.15, which sees 2 GPUs"
    assert check_driver(None).status == check_driver("\n").status == "problem"


def test_active_ports_of_infiniband_are_counted(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "4: ACTIVE")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    ports = infiniband_ports(tmp_path)
    assert ports == dict.fromkeys(("mlx5_0:1", "mlx5_2:1"), "400 Gb/sec (4X NDR)")
    assert check_infiniband(ports).what == "2 active ports, 2 of 400 Gb/sec (4X NDR)"
    assert check_infiniband(infiniband_ports(tmp_path / "none")).what == "no active port"


@pytest.mark.parametrize(
    ("files", "locked", "rdma", "statuses"),
    [
        (65536, resource.RLIM_INFINITY, True, ["fine"]),
        (65536, 8 * 2**20, False, ["fine"]),
        (1024, 8 * 2**20, True, ["warning", "problem"]),
    ],
)
def test_low_limits_are_found(
    files: int, locked: int, rdma: bool, statuses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_NOFILE: (files, files), resource.RLIMIT_MEMLOCK: (locked, locked)}
    monkeypatch.setattr(check_links.resource, "getrlimit", limits.__getitem__)
    assert [finding.status for finding in check_limits(rdma=rdma)] == statuses


def test_all_checks_run_where_there_is_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topology").write_text(HGX)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ncase "$1" in topo) cat {tmp_path}/topology;; *) echo 570.86.15;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    findings = {finding.name: finding.what for finding in check_links.check_links()}
    assert findings["driver"] == "570.86.15, which sees 1 GPU"
    assert findings["NVLink"] == "between all GPUs (NV18)"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert check_links.check_links() == []
