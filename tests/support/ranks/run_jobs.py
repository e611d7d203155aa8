"""Jobs of launched ranks: functions called by name with strings."""

import atexit
import os
import signal
import sys
import time
from base64 import b64encode
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path += [str((Path(__file__).parents[1] / each).resolve()) for each in ("", "models", "models/splits", "../..")]

from bench.running.hosts.listeners import listeners
from graphpipe.errors import InvalidInput, PeerLost, PeerStalled
from graphpipe.launch.regroup_files import Regrouping
from graphpipe.run.comm.world import join
from graphpipe.run.faults.rank_status import StatusWriter


def steps(folder: str) -> None:
    """Train two steps, and leave the losses."""
    from run_models import fan_batch
    from run_scenarios import build

    pipeline, _ = build("shared")
    with pipeline:
        losses = [pipeline.step(*fan_batch()) for _ in range(2)]
    (Path(folder) / os.environ["RANK"]).write_text(repr(losses))


def train_with_faults(folder: str, *faults: str) -> None:
    """Train three steps, with faults, and leave the process id."""
    import run_checkpoints

    (Path(folder) / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))

    run_checkpoints.train_with_faults("pair", folder, list(faults), 3.0)


def fail(how: str) -> None:
    """End rank 1 in the given way, while the others wait for it."""
    world = join("cpu", 30.0)
    if world.rank == 1:
        if how == "kill":
            os.kill(os.getpid(), 9)
        raise InvalidInput("is spoiled", where="mini-batch 7")
    world.barrier()


def listen(folder: str) -> None:
    """Write the addresses of this rank's listening sockets to a file."""
    world = join("cpu", 30.0)
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    hosts = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in own]
    (Path(folder) / str(world.rank)).write_text(" ".join(hosts))
    world.leave()


def wait(folder: str) -> None:
    """Write the process id to a file and wait to be stopped."""
    (Path(folder) / os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)


def listeners_at(folder: str, port: str) -> None:
    """Write the addresses at which any process of this machine listens on a port to a file."""
    world = join("cpu", 30.0)
    (Path(folder) / str(world.rank)).write_text(" ".join(str(at.address) for at in listeners() if at.port == int(port)))
    world.leave()


def write_to_store(folder: str, port: str) -> None:
    """Write a key that torch's agents read to the store at a port, and name a file after the rank's role there."""
    world = join("cpu", 30.0)
    links = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    own = [each for each in listeners() if each.port == int(port) and f"socket:[{each.inode}]" in links]
    (Path(folder) / f"{world.rank}-{'hosts' if own else 'meets'}").touch()
    store = dist.TCPStore("127.0.0.1", int(port), timeout=timedelta(seconds=10))
    store.set("torch.rendezvous.graphpipe", b64encode(b"not for you").decode())
    time.sleep(1.0)
    world.leave()


def check_ranks_with(torch_version: str) -> list[tuple[str, str, str]]:
    """Return the doctor's findings for these ranks when rank 1 has this version of torch."""
    from graphpipe.doctor import check_ranks

    world = join("cpu", 30.0)
    if world.rank == 1:
        found = check_ranks.versions
        check_ranks.versions = lambda packages: found(packages) | {"torch": torch_version}
    findings = check_ranks.check_ranks(world)
    world.leave()
    return [(finding.name, finding.status, finding.what) for finding in findings]


def rejoin_world(port: str) -> list[float]:
    """Join a world twice, through an agent's store on this port, and return the sums of both worlds."""
    with suppress(RuntimeError):  # The other rank may have left already.
        dist.barrier()  # Both ranks are in the group of `run_ranks` before one closes it.
    dist.destroy_process_group()
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    sums: list[float] = []
    for number in range(2):
        world = join("cpu", 20)
        tensor = torch.tensor(float(world.rank + number))
        world.sum(tensor)
        sums.append(tensor.item())
        world.leave()
        time.sleep(
            world.rank
        )  # One rank joins later, so the other one could read its old address instead of the new one.
    return sums


def regroup(folder: str, doomed: str, steps: str) -> None:
    """Note the rank of each generation, lose a process in each, and leave with the steps that this process has done.

    Args:
        folder: for the notes.
        doomed: the process that dies in each generation, or `hang`: process 1 hangs, or process 1 dies, and process 2
            is stopped (`stop`) or sleeps (`sleep`).
        steps: done by each process; -1 if it cannot go on.
    """
    here = Regrouping.here()
    assert here is not None
    own = [int(each) for each in steps.split(",")][here.process]
    for dies in {"hang": [-2], "stop": [1, -1], "sleep": [1, -1]}.get(doomed) or [*map(int, doomed.split(",")), -1]:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        status = StatusWriter(int(rank), ["only"])
        with (Path(folder) / str(here.process)).open("a", encoding="utf-8") as file:
            print(f"{rank}/{size}", file=file)
        with here.in_training():
            if dies == -1:
                return
            while len([*here.files.folder.glob("steps-*")]) < int(size):
                time.sleep(0.01)
            if dies == -2 and here.process == 1:
                time.sleep(1000)
            if doomed == "stop" and here.process == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            if doomed == "sleep" and here.process == 2:
                time.sleep(1000)
            if here.process == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            status.write("receive", peer=1)
            if own < 0:
                time.sleep(0.5)  # The others have seen its file by then.
                here.stay()
            if own < 0 or not here.leave(own):
                raise (PeerStalled if dies == -2 else PeerLost)("rank 1 is gone")


def hang(folder: str, how: str) -> None:
    """Let rank 1 hang where nobody waits for it, and note the process ids.

    Args:
        folder: for the notes.
        how: `stopped at the end` or `late at the end`: while its process ends; `idle`: after rank 0 has ended;
            `all stopped`: both ranks, at the beginning.
    """
    rank = os.environ["RANK"]
    (Path(folder) / rank).write_text(str(os.getpid()))
    if how == "all stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == "0":
        return
    if how == "idle":
        time.sleep(1000)
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGSTOP) if how.startswith("stopped") else time.sleep(1000))
