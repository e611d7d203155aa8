"""Which devices of a cluster have come, when the hosts of an elastic run meet (again) under torchrun."""

import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.training.config.settings import RunSettings
from graphpipe.training.run_folder.metrics_log import read_log
from graphpipe.training.run_folder.recoveries import Pending, stand_still
from graphpipe.training.train_rank import LOG, METRICS

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def run_folder(settings: RunSettings, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of an elastic run, the same whenever its hosts meet.

    Raises:
        InvalidInput: torchrun was not given what an elastic run needs; says what.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise InvalidInput(
            "the ranks share the agent's store, and would find what is left of an earlier start in it",
            where="environment",
            remedy="Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun.",
        )
    name = environment.get("TORCHELASTIC_RUN_ID", "none")
    if name == "none" or not _ID.fullmatch(name):
        raise InvalidInput(
            f"'{name}' is no name for the run's folder",
            where="TORCHELASTIC_RUN_ID",
            remedy="Give torchrun --rdzv-id NAME, of letters, digits, dots and dashes.",
        )
    return Path(settings.directory) / f"{settings.name}-{name}"


def meet(world: World, cluster: Cluster) -> Cluster:
    """Return what has come of a cluster: a device for each rank, in their order; every rank must call this.

    A host is the node of its own name, if all hosts are; else the first host is the first node, and so on.

    Raises:
        InvalidInput: more hosts than nodes, or more ranks on a host than its node has devices.
    """
    hosts: list[str] = world.exchange(f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}")
    return devices_of(hosts, cluster)


def devices_of(hosts: list[str], cluster: Cluster) -> Cluster:
    """Return the devices of a cluster that ranks on these hosts (`name/group rank`, by rank) stand for."""
    nodes: dict[str, list[str]] = {}
    for device in cluster.devices:
        nodes.setdefault(device.node, []).append(device.name)
    counts = Counter(hosts)
    named = {host: host.rpartition("/")[0] for host in counts}
    if len({*named.values()} & nodes.keys()) < len(counts):
        if len(counts) > len(nodes):
            raise InvalidInput(
                f"{len(counts)} hosts have come, the cluster has {len(nodes)} nodes", where=f"cluster '{cluster.name}'"
            )
        named = dict(zip(counts, nodes, strict=False))
    for host, node in named.items():
        if counts[host] > len(nodes[node]):
            raise InvalidInput(
                f"{counts[host]} ranks have come on host '{host}', node '{node}' has {len(nodes[node])} devices",
                where=f"cluster '{cluster.name}'",
                remedy=f"Start {len(nodes[node])} processes on it.",
            )
    return cluster.only([name for host, node in named.items() for name in nodes[node][: counts[host]]])


def note_return(directory: Path, cluster: Cluster, planning_seconds: float | None = None) -> None:
    """Note that a run stood still, if it had begun before and was not done."""
    log = directory / LOG
    if not log.exists() or (directory / METRICS).exists():
        return
    steps = read_log(log)
    since = min(log.stat().st_mtime, time.time())
    names = tuple(device.name for device in cluster.devices)
    cause = f"the hosts met again, with {len(names)} ranks"
    done = steps[-1].step if steps else 0
    pending = Pending(since=since, cause=cause, steps_done=done, devices=names, planning_seconds=planning_seconds)
    stand_still(directory, pending)
