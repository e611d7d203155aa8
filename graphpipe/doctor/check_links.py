"""Checks how the GPUs of this machine reach each other and other machines: driver, NVLink, InfiniBand and limits."""

import re
import resource
import shutil
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path

from graphpipe.doctor.finding import Finding

INFINIBAND = Path("/sys/class/infiniband")
FEWEST_FILES = 4096
"""Open files of a process. Every rank has sockets to all others."""
_SECONDS = 20.0
_ACTIVE = "4: ACTIVE"
_BY_WAY = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the processor",
    "NODE": "the processor",
    "SYS": "two processors",
}
"""What lies between two GPUs without NVLink, by the words of `nvidia-smi topo -m`, the best first."""


def check_links() -> list[Finding]:
    """Check the links of this machine's GPUs; nothing on a machine without NVIDIA's tools."""
    if shutil.which("nvidia-smi") is None:
        return []
    findings = [check_driver(_answer("--query-gpu=driver_version", "--format=csv,noheader"))]
    findings += check_topology(_answer("topo", "-m"))
    networks = infiniband_ports(INFINIBAND)
    return [*findings, check_infiniband(networks), *check_limits(rdma=bool(networks))]


def check_driver(text: str | None) -> Finding:
    """Check that the driver answers.

    Args:
        text: its version for each GPU, one per line; None if it did not answer.
    """
    versions = Counter(line.strip() for line in (text or "").splitlines() if line.strip())
    if not versions:
        remedy = "Look at `nvidia-smi` and `dmesg`: the driver is not loaded, or does not fit the kernel."
        return Finding(name="driver", status="problem", what="nvidia-smi does not answer", remedy=remedy)
    (version, count), *_ = versions.most_common()
    return Finding(name="driver", status="fine", what=f"{version}, which sees {count} GPU{'s' * (count > 1)}")


def check_topology(text: str | None) -> list[Finding]:
    """Check whether every two GPUs have NVLink.

    Args:
        text: what `nvidia-smi topo -m` prints; None if it did not answer.
    """
    between = ways_between(text or "")
    if not between:
        return []
    without = {pair: way for pair, way in between.items() if not way.startswith("NV")}
    if not without:
        what = f"between all GPUs ({', '.join(sorted(set(between.values())))})"
        return [Finding(name="NVLink", status="fine", what=what)]
    worst = [*_BY_WAY].index
    (first, second), way = max(without.items(), key=lambda item: worst(item[1]) if item[1] in _BY_WAY else -1)
    what = f"missing between {len(without)} of {len(between)} pairs: GPU {first} reaches {second} over {_name(way)}"
    remedy = "Plans count on the link of the cluster: measure yours with `graphpipe profile --links`."
    return [Finding(name="NVLink", status="warning", what=what, remedy=remedy)]


def ways_between(text: str) -> dict[tuple[int, int], str]:
    """Return the words of `nvidia-smi topo -m` for every two GPUs: `NV18` is 18 links of NVLink."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = {int(match[1]): match[2].split() for match in re.finditer(r"^GPU(\d+)\s+(.*)$", plain, re.MULTILINE)}
    places = {gpu: place for place, gpu in enumerate(sorted(rows))}
    pairs = combinations(places, 2)
    return {(one, other): rows[one][places[other]] for one, other in pairs if len(rows[one]) > places[other]}


def infiniband_ports(folder: Path) -> dict[str, str]:
    """Return the rate of every active port of InfiniBand or RoCE, by its name."""
    ports = [*folder.glob("*/ports/*")] if folder.is_dir() else []
    active = [port for port in ports if _read(port / "state") == _ACTIVE]
    return {f"{port.parents[1].name}:{port.name}": _read(port / "rate") for port in sorted(active)}


def check_infiniband(ports: dict[str, str]) -> Finding:
    """Say which network NCCL can use between machines."""
    if not ports:
        remedy = (
            "On several hosts NCCL then takes TCP: name its interface with NCCL_SOCKET_IFNAME if there are several."
        )
        return Finding(name="InfiniBand", status="fine", what="no active port", remedy=remedy)
    (rate, count), *_ = Counter(ports.values()).most_common()
    return Finding(name="InfiniBand", status="fine", what=f"{len(ports)} active ports, {count} of {rate}")


def check_limits(*, rdma: bool) -> list[Finding]:
    """Check the limits of this process.

    Args:
        rdma: whether there is a network that reads memory, which has to be locked for it.
    """
    findings: list[Finding] = []
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FEWEST_FILES:
        what = f"{files} open files, fewer than {FEWEST_FILES}"
        remedy = "Ranks, data loaders and NCCL open many: `ulimit -n 65536`."
        findings.append(Finding(name="limits", status="warning", what=what, remedy=remedy))
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if rdma and locked != resource.RLIM_INFINITY:
        what = f"{locked // 1024} KiB of locked memory, which is not unlimited"
        remedy = (
            "NCCL over InfiniBand locks its buffers: `ulimit -l unlimited`, or --ulimit memlock=-1 for a container."
        )
        findings.append(Finding(name="limits", status="problem", what=what, remedy=remedy))
    return findings or [Finding(name="limits", status="fine", what="of open files and locked memory are high enough")]


def _name(way: str) -> str:
    return f"{_BY_WAY[way]} ({way})" if way in _BY_WAY else way


def _answer(*words: str) -> str | None:
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
