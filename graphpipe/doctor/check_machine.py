"""Checks Python, cores, memory, disk and clock of this machine."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from graphpipe.doctor.finding import Finding
from graphpipe.host_memory import available_host_bytes
from graphpipe.units import format_bytes, format_seconds
from graphpipe.versions import PACKAGE, owners

IMPORT_NAME = "graphpipe"
OLDEST_PYTHON = (3, 11)
RANK_BYTES = 256 * 2**20
"""Memory of a rank without a model, which is mostly torch; measured on a CPU."""
LEAST_SHARED_BYTES = 64 * 2**20
"""The default size in containers. Data loaders with workers soon fill it."""
COARSEST_SECONDS = 1e-5
"""The clock cannot time a task that is shorter than its own step."""


def check_machine(ranks: int = 1) -> list[Finding]:
    """Check this machine.

    Args:
        ranks: how many will run on it.
    """
    return [
        check_python(sys.version_info[:3]),
        check_import_name(owners(IMPORT_NAME)),
        check_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, ranks),
        check_memory(available_host_bytes(), ranks),
        check_shared_memory(Path("/dev/shm")),
        check_temporary_files(),
        check_clock(),
    ]


def check_python(version: Sequence[int]) -> Finding:
    """Check the version of Python."""
    what = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if tuple(version) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        remedy = f"Install Python {oldest} or newer."
        return Finding(name="python", status="problem", what=f"{what}, needs {oldest}", remedy=remedy)
    return Finding(name="python", status="fine", what=what)


def check_import_name(distributions: Sequence[str]) -> Finding:
    """Check that no other distribution brings a package of our name. Its files would overwrite ours, or ours its."""
    others = [name for name in distributions if name != PACKAGE]
    if not others:
        return Finding(name="package", status="fine", what=f"only {PACKAGE} brings '{IMPORT_NAME}'")
    remedy = f"pip uninstall {' '.join(others)} && pip install --force-reinstall --no-deps {PACKAGE}"
    what = f"{', '.join(others)} brings a package '{IMPORT_NAME}' too"
    return Finding(name="package", status="problem", what=what, remedy=remedy)


def check_cores(cores: int, ranks: int) -> Finding:
    """Check that there is a core for every rank, and that other programs do not use the cores."""
    load = os.getloadavg()[0]
    what = f"{cores} for this process, load {load:.1f}"
    if ranks > cores:
        return Finding(
            name="cores",
            status="warning",
            what=f"{what}, fewer than {ranks} ranks",
            remedy="Ranks on CPUs then share cores: use a machine with more cores, or fewer ranks.",
        )
    if load > 1.5 * cores:
        remedy = "Profiled and measured times will vary: wait until the machine is quiet."
        return Finding(name="cores", status="warning", what=f"{what}: other work takes them", remedy=remedy)
    return Finding(name="cores", status="fine", what=what)


def check_memory(available: float, ranks: int) -> Finding:
    """Check that there is memory to start this many ranks."""
    least = ranks * RANK_BYTES
    what = f"{format_bytes(available)} available"
    if available < least:
        many = f"{ranks} rank{'s' * (ranks > 1)}"
        remedy = "Close other programs, raise the container's limit, or start fewer ranks."
        what = f"{what}, {many} without any model take {format_bytes(least)}"
        return Finding(name="memory", status="problem", what=what, remedy=remedy)
    return Finding(name="memory", status="fine", what=what)


def check_shared_memory(folder: Path) -> Finding:
    """Check the free shared memory, which data loaders with workers and NCCL use."""
    if not folder.is_dir():
        return Finding(name="shared memory", status="fine", what=f"no {folder} on this system")
    free = shutil.disk_usage(folder).free
    what = f"{format_bytes(free)} free in {folder}"
    if free < LEAST_SHARED_BYTES:
        remedy = "Data loaders with workers and NCCL may fail: start the container with --shm-size=1g, or --ipc=host."
        return Finding(name="shared memory", status="warning", what=what, remedy=remedy)
    return Finding(name="shared memory", status="fine", what=what)


def check_temporary_files() -> Finding:
    """Check that temporary files can be written. Local ranks need them."""
    try:
        with tempfile.NamedTemporaryFile(prefix="graphpipe") as file:
            file.write(b"graphpipe")
            file.flush()
            folder = Path(file.name).parent
    except OSError as error:
        return Finding(
            name="temporary files",
            status="problem",
            what=f"cannot be written: {error.strerror or error}",
            remedy="Set TMPDIR to a folder that can be written, on a disk that is not full.",
        )
    return Finding(name="temporary files", status="fine", what=f"written in {folder}")


def check_clock() -> Finding:
    """Check that the clock that times tasks never goes back, and that its step is small enough."""
    times = [time.perf_counter() for _ in range(2000)]
    steps = [after - before for before, after in pairwise(times)]
    step = min((seconds for seconds in steps if seconds > 0), default=float("inf"))
    if min(steps) < 0 or step > COARSEST_SECONDS:
        what = "goes back" if min(steps) < 0 else f"steps by {format_seconds(step)}"
        return Finding(
            name="clock",
            status="warning",
            what=what,
            remedy="Measured times of tasks will be wrong: look at the system's clock source.",
        )
    return Finding(name="clock", status="fine", what=f"steps by {format_seconds(step)}")
