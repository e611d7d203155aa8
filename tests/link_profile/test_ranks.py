"""Links are measured between local ranks, and between the hosts that torchrun starts ranks on."""

from pathlib import Path

import pytest
from cli_cases import Run, run

from graphpipe.cluster import Cluster
from graphpipe.link_profile.ranks import neighbours

__all__ = ["run"]


def test_pairs_are_neighbours_on_a_host_and_the_first_ranks_of_hosts() -> None:
    assert neighbours(["a"]) == ([], [])
    assert neighbours(["a", "a", "a"]) == ([(0, 1)], [])
    assert neighbours(["a", "b"]) == ([], [(0, 1)])
    assert neighbours(["a", "a", "b", "b", "c", "c"]) == ([(0, 1), (2, 3), (4, 5)], [(0, 2), (0, 4), (2, 4)])


@pytest.mark.usefixtures("forked_ranks")
def test_the_links_of_this_machine_are_measured_and_written(run: Run, tmp_path: Path) -> None:
    nominal, path = Cluster.preset("local:2"), tmp_path / "cluster.toml"
    ran = run("profile", "--links", "--cluster", "local:2", "-o", path, "--json")
    assert ran.code == 0, ran.err
    (measured,) = ran.json["links"]
    assert (measured["first"], measured["second"], measured["same_host"]) == (0, 1, True)
    cluster = Cluster.load(path)
    assert cluster.device_types == nominal.device_types
    assert cluster.intra_node == cluster.inter_node
    link = cluster.intra_node
    # Bounds that every machine keeps: below them, nothing was sent; above them, the runtime would be of little use.
    assert 0 <= link.latency_seconds < 0.1
    assert 1e6 < link.bandwidth_bytes_per_second < 1e12
    assert 1e-6 < link.processor_seconds < 0.1
    assert link.processor_seconds_per_byte < 1e-6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "either MODEL or --links"),
        (("mmt-small", "--links"), "either MODEL or --links"),
        (("--links", "--cluster", "local:1"), "1 device"),
        (("--links", "-o", "cluster.json"), "must end in .toml"),
    ],
)
def test_a_request_that_cannot_be_measured_is_refused(run: Run, words: tuple[str, ...], says: str) -> None:
    ran = run("profile", *words)
    assert (ran.code, ran.err.count("error: ")) == (2, 1)
    assert says in ran.err
