"""Measures the links between ranks, which this module starts on this machine or which torchrun has started."""

import json
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphpipe.cluster.measured_link import MeasuredLink
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.launch.launcher import launch
from graphpipe.link_profile.measure_pairs import measure_pairs
from graphpipe.run.comm.world import World, join

TIMEOUT_SECONDS = 60.0
_FILE = "links.json"


def measure_local_links(ranks: int) -> list[MeasuredLink]:
    """Start ranks on this machine as `graphpipe train` does, and measure the links between pairs of them.

    Args:
        ranks: at least 2. The work of a message depends on how many share the cores.

    Raises:
        InvalidInput: fewer than 2 ranks.
        RankFailed: a rank failed.
    """
    if ranks < 2:
        raise InvalidInput(
            f"the cluster has {ranks} device",
            where="--links",
            remedy="A link needs two: for example --cluster local:2.",
        )
    with tempfile.TemporaryDirectory(prefix="graphpipe") as folder:
        launch("graphpipe.link_profile.ranks:work", ranks, arguments=[folder])
        bodies = json.loads((Path(folder) / _FILE).read_text())
    return [from_body(MeasuredLink, body, _FILE) for body in bodies]


def work(folder: str) -> None:
    """Measure on one rank. Rank 0 writes the links to a file in the folder."""
    if (links := measure_as_rank()) is not None:
        (Path(folder) / _FILE).write_text(json.dumps([to_body(link) for link in links]))


def measure_as_rank() -> list[MeasuredLink] | None:
    """Measure as one of the ranks that torchrun has started, and return the links on rank 0."""
    world = join(None, TIMEOUT_SECONDS)
    with world.closing_on_error():
        links = measure_links(world)
        world.leave()
    return links if world.rank == 0 else None


def measure_links(world: World) -> list[MeasuredLink]:
    """Measure the links between neighbouring ranks of every host, and between each host and the next.

    A collective call: every rank makes it.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    hosts = world.exchange(socket.gethostname())
    inside, between = neighbours(hosts)
    pairs = [*inside, *between]
    return [
        MeasuredLink(first=low, second=high, same_host=(low, high) in inside, link=link)
        for (low, high), link in zip(pairs, measure_pairs(world, pairs), strict=True)
    ]


def neighbours(hosts: Sequence[str]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of ranks to measure on the same host and on two hosts, given every rank's host."""
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(rank)
    inside = [pair for ranks in ranks_of.values() for pair in zip(ranks[::2], ranks[1::2], strict=False)]
    first = [ranks[0] for ranks in ranks_of.values()]
    ring = {(min(pair), max(pair)) for pair in zip(first, [*first[1:], first[0]], strict=True)}
    return inside, sorted((low, high) for low, high in ring if low != high)
