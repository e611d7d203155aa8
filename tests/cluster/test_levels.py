"""Links by level: a rack or a site beside the levels of every cluster needs a table in its file, and nothing else."""

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from builders import Part, chain, make_plan

import graphpipe as gp
from graphpipe.cli.main import main
from graphpipe.cluster import Cluster, Device, Link, LinkLevel
from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.cluster.measured_link import MeasuredLink, with_links
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.planners.lower_bound.op_minima import ring_bandwidth
from graphpipe.plans import Plan
from graphpipe.plans.verify import verify
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify import verify as verify_schedule
from graphpipe.simulator.simulate import simulate
from graphpipe.zoo_graphs import find_zoo_graph

TWO = Path(__file__).parents[1] / "fixtures" / "two_levels"
"""A cluster and a plan for it, written before there were other levels than those of the node."""
THREE = """
name = "two racks"

[intra_node]
latency = "1 us"
bandwidth = "100 GB/s"

[inter_node]
latency = "100 us"
bandwidth = "1 GB/s"

[[levels]]
name = "rack"
nodes = [["a*"], ["b0", "b1"]]
latency = "10 us"
bandwidth = "10 GB/s"

[device_types.v100]
memory = "16 GB"
peak = "15.7 TFLOP/s"
memory_bandwidth = "765 GB/s"

[[nodes]]
name = "a"
devices = { v100 = 2 }
count = 2

[[nodes]]
name = "b"
devices = { v100 = 2 }
count = 2
"""


def link(latency: float, bandwidth: float = 2.0) -> Link:
    return Link(latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)


def racks(nodes: str, *groups: str) -> Cluster:
    """Return a cluster in the units of `builders`: a letter is the node of a device, and a text is a rack of nodes."""
    cluster = make_plan([Part()] * len(nodes)).cluster
    devices = tuple(Device(name=f"d{number}", type="unit", node=node) for number, node in enumerate(nodes))
    rack = LinkLevel(name="rack", link=link(4.0), nodes=tuple(map(tuple, groups)))
    return replace(cluster, devices=devices, intra_node=link(1.0), levels=(rack,), inter_node=link(16.0))


@pytest.fixture
def three(tmp_path: Path) -> Cluster:
    (tmp_path / "three.toml").write_text(THREE)
    return Cluster.load(tmp_path / "three.toml")


def test_devices_have_the_link_of_the_nearest_level_that_joins_them(three: Cluster, tmp_path: Path) -> None:
    assert [three.level(0, other).name for other in range(8)] == ["intra_node"] * 2 + ["rack"] * 2 + ["inter_node"] * 4
    rack = three.level(0, 2).link
    assert (rack.latency_seconds, rack.bandwidth_bytes_per_second) == (pytest.approx(1e-5), 1e10)
    assert three.link(0, 2) == rack
    assert three.link(3, 3) is None
    slowest = [three.slowest_link(devices) for devices in ((0, 1), (0, 1, 2), (0, 1, 2, 3, 4))]
    assert [each and each.bandwidth_bytes_per_second for each in slowest] == [1e11, 1e10, 1e9]
    (tmp_path / "again.toml").write_text(cluster_text(three))
    assert Cluster.load(tmp_path / "again.toml") == three


def test_a_step_takes_the_links_of_its_levels() -> None:
    # Nodes a and b are in a rack. Messages of 8 samples of 3 bytes at 2 bytes/s take 12 s and the latency, both ways.
    given = make_plan([Part(forward=1, backward=2, micro_batch=8)] * 4, chain(4, 3.0), batch_size=8)
    placed = replace(given, cluster=racks("aabc", "ab"))
    assert simulate(placed).step_seconds == pytest.approx(4 * 8 * 3 + 2 * (12 + 1 + 12 + 4 + 12 + 16))
    two_levels = replace(placed, cluster=replace(placed.cluster, levels=()))
    assert simulate(two_levels).step_seconds == pytest.approx(4 * 8 * 3 + 2 * (12 + 1 + 12 + 16 + 12 + 16))
    verify(placed)
    verify_schedule(placed, build_schedule(placed))


def test_replicas_add_up_over_the_slowest_level_of_their_ring() -> None:
    # A ring of 2 adds up 10 bytes of gradients with 2 messages of 5 bytes, one after the other, at 2 bytes/s.
    given = make_plan([Part(degree=2, parameter_bytes=10.0, micro_batch=2)], batch_size=2)
    for nodes, latency in (("aa", 1), ("ab", 4), ("ac", 16)):
        placed = replace(given, cluster=racks(nodes, nodes.replace("c", "").replace("aa", "a")))
        assert simulate(placed).step_seconds == pytest.approx(3 + 2 * (latency + 5 / 2))


def test_a_plan_keeps_what_sends_most_inside_a_rack(three: Cluster) -> None:
    """Every placement of the stages is tried: none is faster than the one that was chosen."""
    found = find_zoo_graph("two-tower-small")
    assert found is not None
    chosen = gp.plan(
        found.graph,
        gp.estimate(found.graph, three),
        three.only([three.devices[number].name for number in (0, 2, 4)]),
        batch_size=24,
        stages_per_device=1,
    )
    seconds = simulate(chosen).step_seconds
    ends = [device for stage in chosen.stages for device in stage.devices]
    for order in permutations(range(3)):
        stages = [replace(s, devices=tuple(order[device] for device in s.devices)) for s in chosen.stages]
        assert simulate(replace(chosen, stages=tuple(stages), prediction=None)).step_seconds >= seconds * (1 - 1e-9)
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.slow
def test_three_levels_go_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "three.toml").write_text(THREE)
    path = tmp_path / "plan.json"
    words = ["plan", "two-tower-small", "--cluster", str(tmp_path / "three.toml"), "--batch", "64", "-o", str(path)]
    assert main(words) == 0
    made = Plan.load(path)
    verify(made)
    assert [level.name for level in made.cluster.every_level] == ["intra_node", "rack", "inter_node"]
    assert main(["simulate", str(path), "--json"]) == 0
    assert main(["report", str(path), "-o", str(tmp_path / "report.html")]) == 0
    assert "two racks" in (tmp_path / "report.html").read_text()
    assert made.prediction is not None
    assert made.prediction.step_seconds == pytest.approx(simulate(made).step_seconds)
    capsys.readouterr()


def test_with_fast_links_all_levels_are_fast() -> None:
    given = make_plan([Part(forward=1, backward=2, micro_batch=8)] * 3, chain(3, 3.0), batch_size=8)
    placed = replace(given, cluster=racks("abc", "ab"))
    assert placed.cluster.with_every_link(lambda _: link(0.0, 1e18)).link(0, 1) == link(0.0, 1e18)


def test_files_of_two_levels_are_what_they_were(tmp_path: Path) -> None:
    """A field that is new in every file would have changed each fingerprint."""
    cluster, made = Cluster.load(TWO / "cluster.toml"), Plan.load(TWO / "plan.json")
    assert cluster.device_types == made.cluster.device_types
    cluster = made.cluster
    assert "levels" not in to_body(cluster)
    assert cluster_text(cluster) == (TWO / "cluster.toml").read_text()
    assert cluster.fingerprint == "6623425a01e3ec9ecb681b888154a4c87d4bc295af1d1f16fc0a86b3be2a57f8"
    made.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == (TWO / "plan.json").read_bytes()


def test_devices_that_are_left_keep_their_levels(three: Cluster) -> None:
    left = three.only([three.devices[number].name for number in (0, 2, 6)])
    assert left.levels[0].nodes == (("a0", "a1"), ("b1",))
    assert [left.level(0, other).name for other in (1, 2)] == ["rack", "inter_node"]
    alone = three.only([three.devices[0].name])  # planners ask for its groups when they try fewer devices
    assert (alone.level(0, 0).name, alone.link_levels.groups) == ("intra_node", (0,))


def test_a_measured_link_belongs_to_the_level_of_its_hosts(three: Cluster) -> None:
    pairs = [(0, 1, True, 1.0), (0, 2, False, 2.0), (4, 7, False, 4.0), (0, 4, False, 8.0), (1, 9, False, 6.0)]
    measured = [MeasuredLink(first=a, second=b, same_host=same, link=link(each)) for a, b, same, each in pairs]
    found = {level.name: level.link.latency_seconds for level in with_links(three, measured).every_level}
    assert found == {"intra_node": 1.0, "rack": 3.0, "inter_node": 7.0}


def test_the_bound_of_a_ring_is_the_fastest_link_that_it_cannot_avoid(three: Cluster) -> None:
    bandwidths = [ring_bandwidth(three, degree) for degree in (2, 3, 4, 5, 8)]
    assert bandwidths == [1e11, 1e10, 1e10, 1e9, 1e9]


RACK = LinkLevel(name="rack", link=link(4.0), nodes=(("a", "b"),))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((replace(RACK, nodes=(("a", "z"),)),), "level 'rack'.*names unknown node 'z'"),
        ((replace(RACK, nodes=(("a",), ("b", "a"))),), "names node 'a' 2 times"),
        ((RACK, RACK), "two levels are named 'rack'"),
        ((replace(RACK, name="inter_node"),), "two levels are named 'inter_node'"),
        ((RACK, replace(RACK, name="site", nodes=(("b", "c"),))), "joins 'b' but not 'a'.*'rack'.*nearest level first"),
        ((replace(RACK, link=link(4.0, 0.0)),), "rack, bandwidth_bytes_per_second"),
    ],
)
def test_levels_that_contradict_each_other_are_refused(levels: tuple[LinkLevel, ...], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        replace(racks("abc", "ab"), levels=levels)
    assert re.search(message, str(refused.value).replace("\n", " "))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('nodes = [["c*"]]', "names no node with 'c\\*'"),
        ('nodes = ["a0", "a1"]', "must be a list of lists of strings"),
        ("", "'nodes' is missing"),
        ('nodes = [["a0"]]\nrange = 2', "unknown key 'range'"),
    ],
)
def test_a_file_with_a_wrong_level_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(THREE.replace('nodes = [["a*"], ["b0", "b1"]]', text))
    with pytest.raises(InvalidInput, match=message):
        Cluster.load(path)
