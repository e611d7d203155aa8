"""Hosts on one machine: each has namespaces of its own (network, processes, name), a bridge joins their links.

    pipe from here -> host0: cat      eth0 10.77.0.1 --(tbf)--+
    pipe from here -> host1: cat      eth0 10.77.0.2 --(tbf)--+-- bridge   (switch: cat, in a network namespace too)

Every namespace lives as long as its first process, which reads a pipe that only this process can write to: when the
block ends, or this process is killed, the pipe closes, and the kernel ends all that runs on the host and removes its
link. Everything is in a user namespace: nothing of it needs root, and nothing of it is seen outside.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.record import ROOT
from bench.running.hosts.listeners import listeners

_IMPORTED = str(ROOT)
_TOOLS = ("unshare", "nsenter", "ip", "tc")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_SETUP = (
    "if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi",  # There is no name server.
    "echo 5 > /proc/sys/net/ipv4/tcp_retries2",  # As docs/cluster.md says: a host's agent notices that it is cut off.
    "ip link set lo up",
)


@dataclass(frozen=True)
class Host:
    """One of the hosts that `hosts` creates."""

    name: str
    address: str
    process: psutil.Process
    """Its first process; all others end with it."""
    switch: int
    """The process that holds the network that joins the hosts."""

    def start(self, command: Sequence[str | Path], said: Path) -> subprocess.Popen[bytes]:
        """Start a command on the host, with its output in a file."""
        with said.open("w") as file:
            return subprocess.Popen(
                [*_enter(self.process.pid, "--uts", "--mount", "--pid"), *command],
                env={**os.environ, "PYTHONPATH": _IMPORTED, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def cut_off(self) -> None:
        """Disconnect the host from the network."""
        _run([*_enter(self.switch), "ip", "link", "set", self.name, "down"])

    def listening(self) -> set[str]:
        """Return the addresses at which ranks listen, without those of their launchers."""
        ranks = [process for process in self.running() if "torch.distributed.run" not in process.cmdline()]
        sockets = {inode for process in ranks for inode in _sockets(process)}
        return {str(each.address) for each in listeners(self.process.pid) if each.inode in sockets}

    def running(self) -> list[psutil.Process]:
        """Return the processes on the host except its first."""
        inside = _namespace(self.process.pid)
        others = [process for process in psutil.process_iter() if process.pid != self.process.pid]
        return [process for process in others if _namespace(process.pid) == inside]


@contextmanager
def hosts(count: int, folder: Path, rate: str = "") -> Generator[list[Host]]:
    """Create hosts named host0, host1, ..., and remove them after the block.

    Args:
        count: how many.
        folder: for a file with their names and addresses.
        rate: of every host's link, in both directions, as `tc` writes it (`100mbit`); by default it has no limit.
    """
    addresses = {f"host{number}": f"10.77.0.{number + 1}" for number in range(count)}
    names = folder / "hosts"
    names.write_text(
        "".join(f"{address} {name}\n" for name, address in ({"localhost": "127.0.0.1"} | addresses).items())
    )
    with ExitStack() as stack:
        switch = stack.enter_context(
            _held(
                ["unshare", "--user", "--map-root-user", "--net"],
                ["ip link add bridge type bridge", "ip link set bridge up"],
            )
        )
        made = []
        for name, address in addresses.items():
            apart = ["--net", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
            setup = [f"hostname {name}", f"mount --bind {names} /etc/hosts", *_SETUP]
            pid = stack.enter_context(_held([*_enter(switch), "unshare", *apart], setup))
            made.append(Host(name, address, psutil.Process(pid), switch))
            _connect(made[-1], rate)
        yield made


def why_not() -> str:
    """Return why hosts cannot be created here; empty if they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (iproute2, util-linux)"
    try:
        with tempfile.TemporaryDirectory() as folder, hosts(1, Path(folder), "100mbit"):
            return ""
    except OSError as error:
        return f"network namespaces are not permitted: {error}"


def _connect(host: Host, rate: str) -> None:
    # A pair of virtual cards: one end stays at the bridge under the host's name, the other is the host's eth0.
    host_end, limit = ["dev", "eth0"], ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"]
    switch, inside = _enter(host.switch), _enter(host.process.pid)
    add = ["ip", "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(host.process.pid)]
    _run([*switch, *add])
    _run([*switch, "ip", "link", "set", host.name, "master", "bridge", "up"])
    _run([*inside, "ip", "address", "add", f"{host.address}/24", *host_end])
    _run([*inside, "ip", "link", "set", *host_end, "up"])
    if rate:
        _run([*switch, "tc", "qdisc", "add", "dev", host.name, *limit])
        _run([*inside, "tc", "qdisc", "add", *host_end, *limit])


@contextmanager
def _held(namespaces: Sequence[str], setup: Sequence[str]) -> Generator[int]:
    # A process in new namespaces, and its process id here.
    script = " && ".join([*setup, "echo ready", "exec cat"])
    command = [*namespaces, "sh", "-c", script]
    environment = {**os.environ, "PATH": _PATH}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, env=environment) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "ready\n":
                raise OSError(holder.stderr.read().strip())
            # `unshare` with --fork stays outside as the parent of the first process inside.
            inside = psutil.Process(holder.pid).children()
            yield inside[0].pid if "--fork" in namespaces else holder.pid
        finally:
            holder.stdin.close()
            holder.wait(timeout=20)


def _enter(pid: int, *more: str) -> list[str]:
    return ["nsenter", "--target", str(pid), "--user", "--preserve-credentials", "--net", *more, "--"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env={**os.environ, "PATH": _PATH}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _sockets(process: psutil.Process) -> list[str]:
    names: list[str] = []
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It has been closed in the meantime.
            names.append(os.readlink(file))
    return [name[len("socket:[") : -1] for name in names if name.startswith("socket:[")]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""
