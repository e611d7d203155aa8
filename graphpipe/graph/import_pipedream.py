"""Import of PipeDream's profiles: `graph.txt`."""

import re
from collections.abc import Mapping
from pathlib import Path

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph.import_common import build, check_amount, check_samples, read_lines, without
from graphpipe.graph.operator import Edge, Measured, Op, Work
from graphpipe.graph.operator_graph import Graph

_KEYS = ["forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"]
_COSTS = f"A node's costs read: {'=..., '.join(_KEYS)}=..."
_COST = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\[]*)(?:,\s*|$)")


def read_pipedream(path: str | Path, *, samples: int = 128) -> Graph:
    """Return the graph of a PipeDream profile.

        node4 -- Linear(8, 8) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[32.0; 4.0], \
parameter_size=256.000
        <tab>node4 -- node5

    Times are milliseconds of one mini-batch, and sizes are bytes of one mini-batch. Several outputs are summed. Output
    and saved bytes are both the activation size. Dropped are `Input` nodes, whose times belong to the data loader, and
    `__getitem__` nodes that no other node reads.

    Args:
        path: the text file.
        samples: samples of the profiled mini-batch, which the file does not record.

    Raises:
        InvalidInput: unreadable or empty, a malformed line, an unknown or missing key, a bad number, an edge to an
            unknown node (each with its line), or a cycle.

    References:
        Narayanan et al.: PipeDream: generalized pipeline parallelism for DNN training. SOSP 2019, section 3.
    """
    check_samples(samples)
    ops: dict[str, Op] = {}
    pairs: dict[tuple[str, str], str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        if line.startswith("\t"):
            pairs[_edge(line, where)] = where
        elif line.strip():
            op = _node(line, samples, where)
            if op.name in ops:
                raise InvalidInput(f"node '{op.name}' is listed twice", where=where, remedy="List it once.")
            ops[op.name] = op
    for pair, where in pairs.items():
        for name in pair:
            if name not in ops:
                what = f"the edge names '{name}', which is not listed as a node"
                raise InvalidInput(what, where=where, remedy="Add the node, or remove the edge.")
    edges = [Edge(source=a, target=b, bytes_per_sample=ops[a].output_bytes_per_sample) for a, b in pairs]
    return build(path, *without(_unused(ops, edges), ops.values(), edges))


def _edge(line: str, where: str) -> tuple[str, str]:
    ends = [end.strip() for end in line.split(" -- ")]
    if len(ends) != 2:
        raise InvalidInput(f"'{line.strip()}' is not an edge", where=where, remedy="An edge reads: node1 -- node2.")
    return ends[0], ends[1]


def _node(line: str, samples: int, where: str) -> Op:
    parts = [part.strip() for part in line.split(" -- ")]
    if len(parts) != 3:
        remedy = "A node reads: node1 -- description -- key=value, ... An edge begins with a tab."
        raise InvalidInput(f"'{line.strip()[:40]}' is not a node", where=where, remedy=remedy)
    name, description, costs = parts
    amounts = _amounts(costs, where)
    output = amounts["activation_size"] / samples
    return Op(
        name=name,
        kind=re.split(r"[(\[\s]", description, maxsplit=1)[0],
        parameter_bytes=amounts["parameter_size"],
        output_bytes_per_sample=output,
        work=Work(saved_bytes_per_sample=output),
        measured=Measured(
            forward_seconds=amounts["forward_compute_time"] * 1e-3,
            backward_seconds=amounts["backward_compute_time"] * 1e-3,
            samples=samples,
        ),
    )


def _amounts(costs: str, where: str) -> Mapping[str, float]:
    amounts: dict[str, float] = {}
    position = 0
    while position < len(costs):
        match = _COST.match(costs, position)
        if match is None:
            raise InvalidInput(f"'{costs[position:][:40]}' is not key=value", where=where, remedy=_COSTS)
        if match[1] not in _KEYS:
            raise InvalidInput(f"unknown key '{match[1]}'", where=where, remedy=nearest(match[1], _KEYS))
        amounts[match[1]] = sum(_number(text, f"{where}, {match[1]}") for text in match[2].strip("[]").split(";"))
        position = match.end()
    missing = [key for key in _KEYS if key not in amounts]
    if missing:
        raise InvalidInput(f"{missing[0]} is missing", where=where, remedy=_COSTS)
    return amounts


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InvalidInput(
            f"'{text.strip()}' is not a number", where=where, remedy="Write one number, or [a; b]."
        ) from None
    return check_amount(number, where)


def _unused(ops: Mapping[str, Op], edges: list[Edge]) -> list[str]:
    readers = dict.fromkeys(ops, 0)
    for edge in edges:
        readers[edge.source] += 1
    return [
        name
        for name, op in ops.items()
        if op.kind.startswith("Input") or (op.kind == "__getitem__" and not readers[name])
    ]
