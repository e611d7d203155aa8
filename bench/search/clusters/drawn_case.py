"""A random cluster, a graph and a mini-batch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import graphpipe as gp
from bench.search.profiles import DATA
from graphpipe.cluster import Cluster, Device, DeviceType, Link, LinkLevel
from graphpipe.graph import Edge, Op, Work
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

KINDS = ("equal", "slow sites", "types", "memory")
"""What is special about a cluster: nothing, links between sites, devices of several speeds, or of several memories."""
ZOO = {"mmt": 16, "dlrm": 128, "candle-uno": 128, "case-study": 16, "gpt": 16, "two-tower": 16, "unet": 16}
"""Samples of a mini-batch per device."""
PROFILES = {"gnmt": 32, "vgg16": 32, "resnet50": 32, "inception_v3": 32}
_NODES = ((1, 3), (1, 4), (2, 2), (1, 6), (2, 4), (3, 4), (2, 8), (4, 4), (6, 4), (4, 8), (8, 4), (8, 8))
"""Nodes and devices of each: 3 to 64 devices."""
_SITES = (1.25e9, 0.125e9, 0.0125e9)
"""Bytes per second between sites: 10, 1 and 0.1 Gb/s."""
_GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCase:
    """A problem of planning."""

    seed: int
    kind: str
    model: str
    graph: gp.Graph
    cluster: Cluster
    batch_size: int

    @property
    def parts(self) -> dict[str, Cluster]:
        """The cluster's nodes, sites and types of devices, each as a cluster of its own, by name."""
        devices = self.cluster.devices
        groups = {f"node {node}": [each for each in devices if each.node == node] for node in _unique(devices, "node")}
        groups |= {f"type {name}": [each for each in devices if each.type == name] for name in _unique(devices, "type")}
        for level in self.cluster.levels:
            for nodes in level.nodes:
                groups[f"{level.name} {nodes[0]}"] = [each for each in devices if each.node in nodes]
        parts: dict[str, Cluster] = {}
        for name, group in groups.items():
            if len(group) < len(devices):
                parts[name] = self.cluster.only([each.name for each in group])
        return parts


def draw_case(seed: int) -> DrawnCase | None:
    """Return the case of a seed; kinds of clusters alternate. None: its profile is absent."""
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    model = draw.choice(["random", "random", *ZOO, *PROFILES])
    if model in PROFILES and not DATA.exists():
        return None
    graph = random_graph(draw.randint(4, 40), draw) if model == "random" else _graph(model)
    nodes, each = draw.choice([shape for shape in _NODES if kind in ("equal", "memory") or shape[0] > 1])
    cluster = _cluster(kind, nodes, each, draw)
    samples = {**ZOO, **PROFILES}.get(model, draw.choice([4, 16]))
    batch_size = samples * nodes * each
    return DrawnCase(seed=seed, kind=kind, model=model, graph=graph, cluster=cluster, batch_size=batch_size)


def random_graph(count: int, draw: random.Random) -> gp.Graph:
    """Return a graph whose operators read one or two of the four before them."""
    ops: list[Op] = []
    edges: list[Edge] = []
    for number in range(count):
        out = draw.choice([1, 4, 16]) * 2**14 * draw.uniform(0.5, 2)
        flops = draw.uniform(1, 20) * 1e9
        work = Work(flops_per_sample=flops, traffic_bytes_per_sample=out * 3, saved_bytes_per_sample=out * 2, kernels=4)
        ops.append(
            Op(
                name=f"o{number}",
                parameters=(f"w{number}",),
                parameter_bytes=draw.uniform(1, 20) * 2**20,
                output_bytes_per_sample=out,
                work=work,
            )
        )
        before = range(max(0, number - 4), number)
        for source in draw.sample(before, min(len(before), draw.choice([1, 1, 2]))):
            size = ops[source].output_bytes_per_sample
            edges.append(Edge(source=f"o{source}", target=f"o{number}", bytes_per_sample=size))
    return gp.Graph(name="random", ops=tuple(ops), edges=tuple(edges))


def _cluster(kind: str, nodes: int, each: int, draw: random.Random) -> Cluster:
    fastest = replace(Cluster.preset("summit:1x1").device_types[0], name="t0", memory_bytes=16 * _GIGA)
    types = [fastest]
    for number in range(1, draw.choice([2, 3]) if kind in ("types", "memory") else 1):
        share = draw.choice([0.25, 0.5, 0.8]) if kind == "types" else 1.0
        memory = draw.choice([6, 8, 12]) * _GIGA if kind == "memory" else fastest.memory_bytes
        types.append(slower(fastest, f"t{number}", share, memory))
    type_of = [draw.choice(types).name for _ in range(nodes)]
    level, between = tuple[LinkLevel, ...](), draw.choice([10.6e9, 1.25e9])
    if kind == "slow sites":
        cut = draw.randint(1, nodes - 1)
        names = [f"n{number}" for number in range(nodes)]
        level = (LinkLevel(name="site", link=link(between, 10e-6), nodes=(tuple(names[:cut]), tuple(names[cut:]))),)
        between = draw.choice(_SITES)
    return Cluster(
        name=f"{kind} {nodes}x{each}",
        device_types=tuple(kind for kind in types if kind.name in type_of),
        devices=tuple(
            Device(name=f"n{node}/{number}", type=type_of[node], node=f"n{node}")
            for node in range(nodes)
            for number in range(each)
        ),
        intra_node=link(43e9, 8e-6),
        inter_node=link(between, 50e-6 if kind == "slow sites" else 10e-6),
        levels=level,
    )


def slower(kind: DeviceType, name: str, share: float, memory: float) -> DeviceType:
    """Return a device type of a share of another's speed, with so many bytes of memory."""
    return replace(
        kind,
        name=name,
        peak_flops_per_second=kind.peak_flops_per_second * share,
        memory_bytes_per_second=kind.memory_bytes_per_second * share,
        memory_bytes=memory,
    )


def link(bandwidth: float, latency: float) -> Link:
    """Return a link of so many bytes per second, and a latency in seconds."""
    return Link(latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)


@cache
def _graph(model: str) -> gp.Graph:
    if model not in ZOO:
        return read_pipedream(DATA / f"{model}.graph.txt")
    found = find_zoo_graph(model)
    assert found is not None, model
    return found.graph


def _unique(devices: Sequence[Device], field: str) -> list[str]:
    return [*dict.fromkeys(getattr(device, field) for device in devices)]
