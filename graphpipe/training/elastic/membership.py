"""The hosts that have joined an elastic run under torchrun, and the devices of the cluster that they stand for."""

import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.training.config.settings import RunSettings, TrainConfig
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.recoveries import Interruption, note_interruption
from graphpipe.training.run_folder.run_folder import RunFolder

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Membership:
    """The hosts of an elastic run that have joined, now or after a loss."""

    folder: RunFolder
    cluster: Cluster
    """One device for each rank, in the order of ranks."""

    @staticmethod
    def gather(config: TrainConfig, world: World) -> "Membership":
        """Return the hosts that have joined. Every rank calls this.

        Raises:
            InvalidInput: an option of torchrun is missing, there are more hosts than nodes, or more ranks on a host
                than devices on its node.
        """
        folder = shared_folder(config.run)
        hosts: list[str] = world.exchange(f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}")
        return Membership(folder, devices_of(hosts, Cluster.resolve(config.cluster)))


def shared_folder(settings: RunSettings, environment: Mapping[str, str] = os.environ) -> RunFolder:
    """Return the folder of an elastic run. It is the same each time its hosts join.

    Raises:
        InvalidInput: an option of torchrun that an elastic run needs is missing. The message names it.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise InvalidInput(
            "the ranks share the store of torchrun's agent, which still holds the keys of an earlier start",
            where="environment",
            remedy="Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun.",
        )
    name = environment.get("TORCHELASTIC_RUN_ID", "none")
    if name == "none" or not _RUN_ID.fullmatch(name):
        raise InvalidInput(
            f"'{name}' cannot name the run's folder",
            where="TORCHELASTIC_RUN_ID",
            remedy="Give torchrun --rdzv-id NAME, of letters, digits, dots and dashes.",
        )
    return RunFolder(Path(settings.directory) / f"{settings.name or 'run'}-{name}")


def devices_of(hosts: Sequence[str], cluster: Cluster) -> Cluster:
    """Return the devices of a cluster that ranks on these hosts stand for, one device for each rank.

    If every host has the name of a node, it is that node. Otherwise the first host is the first node, and so on.

    Args:
        hosts: `name/group rank` of each rank's host, by rank.
        cluster: of the configuration.

    Raises:
        InvalidInput: there are more hosts than nodes, or more ranks on a host than devices on its node.
    """
    nodes: dict[str, list[str]] = {}
    for device in cluster.devices:
        nodes.setdefault(device.node, []).append(device.name)
    counts = Counter(hosts)
    node_of = {host: host.rpartition("/")[0] for host in counts}
    if len({*node_of.values()} & nodes.keys()) < len(counts):
        if len(counts) > len(nodes):
            raise InvalidInput(
                f"{len(counts)} hosts have joined, the cluster has {len(nodes)} nodes",
                where=f"cluster '{cluster.name}'",
            )
        node_of = dict(zip(counts, nodes, strict=False))
    for host, node in node_of.items():
        if counts[host] > len(nodes[node]):
            raise InvalidInput(
                f"{counts[host]} ranks have joined on host '{host}', node '{node}' has {len(nodes[node])} devices",
                where=f"cluster '{cluster.name}'",
                remedy=f"Start {len(nodes[node])} processes on it.",
            )
    return cluster.only([name for host, node in node_of.items() for name in nodes[node][: counts[host]]])


def note_restart(folder: RunFolder, cluster: Cluster, planning_seconds: float | None = None) -> None:
    """Write down that a run was interrupted, if it had begun before and is not complete.

    Args:
        folder: of the run.
        cluster: the devices on which it continues.
        planning_seconds: time taken to plan for them.
    """
    log = folder.metrics_log
    if not log.exists() or folder.metrics.exists():
        return
    steps = read_metrics_log(log)
    names = tuple(device.name for device in cluster.devices)
    silent = max(0.0, time.time() - log.stat().st_mtime)  # the log may be another host's, whose clock is another one
    interruption = Interruption.of(
        time.monotonic() - silent,
        cause=f"the hosts joined again, with {len(names)} ranks",
        steps_done=steps[-1].step if steps else 0,
        devices=names,
        planning_seconds=planning_seconds,
    )
    note_interruption(folder, interruption)
