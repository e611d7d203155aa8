"""Checks that ranks can communicate, and that they run the same versions on the same kind of device."""

import json
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from graphpipe.devices.registry import all_device_kinds, kind_of
from graphpipe.doctor import Finding
from graphpipe.errors import GraphPipeError
from graphpipe.files.json_body import from_body, to_body
from graphpipe.launch.launcher import launch
from graphpipe.run.comm.world import World, join
from graphpipe.units import format_seconds
from graphpipe.versions import PACKAGE, versions

TIMEOUT_SECONDS = 60.0
FILE = "findings.json"
ROUNDS = 10
Environment = Mapping[str, str]


def check_local_ranks(ranks: int, port: int) -> list[Finding]:
    """Start ranks on this machine as `graphpipe train` does, and return their findings.

    Args:
        ranks: how many.
        port: where they meet; 0 is any free port.
    """
    with tempfile.TemporaryDirectory(prefix="graphpipe") as folder:
        try:
            launch("graphpipe.doctor.check_ranks:work", ranks, arguments=[folder], port=port)
        except GraphPipeError as error:
            remedy = error.remedy or "Look at the other findings first."
            what = f"{error.where}: {error.what}" if error.where else error.what
            return [Finding(name="ranks", status="problem", what=what, remedy=remedy)]
        bodies = json.loads((Path(folder) / FILE).read_text())
    return [from_body(Finding, body, FILE) for body in bodies]


def work(folder: str) -> None:
    """Run the checks on one rank. Rank 0 writes the findings to a file in the folder."""
    world = join(None, TIMEOUT_SECONDS)
    with world.closing_on_error():
        findings = check_ranks(world)
        if world.rank == 0:
            (Path(folder) / FILE).write_text(json.dumps([to_body(finding) for finding in findings]))
        world.leave()


def check_ranks(world: World) -> list[Finding]:
    """Check that the ranks compute a correct sum and run the same versions. A collective call: every rank must make it.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    environments = world.exchange(environment(world.device))
    return [*_sums(world), *differences(environments)]


def environment(device: torch.device) -> dict[str, str]:
    """Return the versions that must be the same on all ranks, and the host and device of this rank."""
    own = kind_of(device)
    details = {"host": socket.gethostname(), "device": own.describe(device)}
    details |= versions([PACKAGE, "torch", "numpy", "safetensors"])
    for kind in all_device_kinds().values():
        details |= kind.versions(used=kind is own)
    return details


def differences(environments: Sequence[Environment]) -> list[Finding]:
    """Return a problem for every version that differs from that of rank 0.

    Different devices are a warning, because the cluster file must describe them.
    """
    findings: list[Finding] = []
    first = environments[0]
    for what in first:
        ranks = [rank for rank, other in enumerate(environments) if other[what] != first[what]]
        if what == "host" or not ranks:
            continue
        other = environments[ranks[0]]
        text = (
            f"rank {ranks[0]} on {other['host']} has {other[what]}, rank 0 on {first['host']} has {first[what]}"
            f" ({len(ranks)} of {len(environments)} ranks differ from rank 0)"
        )
        if what == "device":
            remedy = "Describe the cluster in a TOML file with a type for each, so that plans use their speeds."
            findings.append(Finding(name="devices of the ranks", status="warning", what=text, remedy=remedy))
        else:
            remedy = f"Install the same {what} on every host."
            findings.append(Finding(name=f"{what} of the ranks", status="problem", what=text, remedy=remedy))
    if not findings:
        hosts = len({environment["host"] for environment in environments})
        what = f"the same versions on {len(environments)} ranks of {hosts} host{'s' * (hosts > 1)}"
        findings.append(Finding(name="versions", status="fine", what=what))
    return findings


def _sums(world: World) -> list[Finding]:
    expected = world.size * (world.size - 1) / 2
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        tensor = torch.full((1024,), float(world.rank), device=world.device)
        world.sum(tensor)
        right = bool((tensor == expected).all())
        seconds.append(time.perf_counter() - start)
        if not all(world.exchange(right)):
            what = f"{world.backend} computes a wrong sum"
            return [Finding(name="ranks", status="problem", what=what, remedy="Look at the network and its drivers.")]
    slowest = max(world.exchange(min(seconds)))
    what = f"{world.size} over {world.backend}, a sum of 4 KiB takes {format_seconds(slowest)}"
    return [Finding(name="ranks", status="fine", what=what)]
