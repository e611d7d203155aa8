"""Import of Piper's inputs: JSON with time and memory per node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.graph.import_common import build, check_amount, check_samples
from graphpipe.graph.operator import Edge, Measured, Op, Work
from graphpipe.graph.operator_graph import Graph

_FORBID = ConfigDict(extra="forbid")


# The fields are spelled as in the file.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    __pydantic_config__ = _FORBID

    id: str
    timePerSample: float
    parameterSize: float
    memoryUsageA: float
    memoryUsageB: float
    syncTimeFw: dict[str, float]
    syncTimeBw: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    __pydantic_config__ = _FORBID

    id: int
    name: str
    TMPCs: dict[str, tuple[_Variant, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    __pydantic_config__ = _FORBID

    sourceId: int
    destId: int
    communicationCost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    __pydantic_config__ = _FORBID

    maxDevices: int
    maxMemoryPerDevice: float
    bandwidth: float
    mbsInBatch: int
    nodes: tuple[_Node, ...]
    edges: tuple[_Connection, ...]


def read_piper(path: str | Path, *, samples: int = 1) -> Graph:
    """Return the graph of a Piper input.

    Reads the variant `vanilla` (without recomputation) without tensor parallelism (TMPC 1). `timePerSample` is the
    seconds of forward and backward of one micro-batch. A third counts as forward and two thirds as backward, which is
    the proportion of matrix products. memoryUsageA (bytes kept per micro-batch in flight) becomes saved bytes.
    memoryUsageB (bytes kept once) is left out, because the optimizer's state follows from the parameters. Devices,
    memory and bandwidth are left out, because they belong to the cluster.

    Args:
        path: the JSON file.
        samples: samples of one micro-batch, which the file does not record.

    Raises:
        InvalidInput: unreadable or not JSON (with the line), an unknown, missing or bad field (its key is named), an
            edge to an unknown node, or a cycle.

    References:
        Tarnawski, Narayanan, Phanishayee: Piper: multidimensional planner for DNN parallelization. NeurIPS 2021,
        section 3.
    """
    check_samples(samples)
    file = from_body(_File, read_json(path), str(path))
    names = {node.id: f"{node.name}.{node.id}" for node in file.nodes}
    if len(names) < len(file.nodes):
        raise InvalidInput("two nodes have the same id", where=f"{path}, nodes", remedy="Give each node its own id.")
    edges = [_edge(edge, names, samples, f"{path}, edges.{at}") for at, edge in enumerate(file.edges)]
    output: dict[str, float] = {}
    for edge in edges:
        output[edge.source] = max(output.get(edge.source, 0.0), edge.bytes_per_sample)
    ops = [
        _op(node, names[node.id], output.get(names[node.id], 0.0), samples, f"{path}, nodes.{at}")
        for at, node in enumerate(file.nodes)
    ]
    return build(path, ops, edges)


def _edge(edge: _Connection, names: Mapping[int, str], samples: int, where: str) -> Edge:
    for field, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
        if end not in names:
            what = f"names node {end}, which is not in nodes"
            raise InvalidInput(what, where=f"{where}.{field}", remedy="Add the node, or remove the edge.")
    count = check_amount(edge.communicationCost, f"{where}.communicationCost")
    return Edge(source=names[edge.sourceId], target=names[edge.destId], bytes_per_sample=count / samples)


def _op(node: _Node, name: str, output: float, samples: int, where: str) -> Op:
    variants = {variant.id: variant for variant in node.TMPCs.get("1", ())}
    if "vanilla" not in variants:
        remedy = "Only the times without recomputation and tensor parallelism are read."
        raise InvalidInput("has no variant 'vanilla'", where=f"{where}.TMPCs.1", remedy=remedy)
    vanilla = variants["vanilla"]
    for field in ("timePerSample", "parameterSize", "memoryUsageA"):
        check_amount(getattr(vanilla, field), f"{where}.TMPCs.1, variant vanilla, {field}")
    seconds = vanilla.timePerSample
    return Op(
        name=name,
        kind=node.name,
        parameter_bytes=vanilla.parameterSize,
        output_bytes_per_sample=output,
        work=Work(saved_bytes_per_sample=vanilla.memoryUsageA / samples),
        measured=Measured(forward_seconds=seconds / 3, backward_seconds=seconds * 2 / 3, samples=samples),
    )
