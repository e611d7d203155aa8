"""Import of PipeEdge's profiles: YAML files of models, device types and hosts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.cluster import Cluster, Device, DeviceType, Link, PairLink
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_body import from_body
from graphpipe.files.yaml import read_yaml
from graphpipe.graph import Edge, Graph, Op
from graphpipe.graph.import_common import check_amount

MEGA = 1024.0 * 1024.0
"""PipeEdge's megabytes and megabits are binary."""
_FORBID = ConfigDict(extra="forbid")
_BYTES = {"torch.float32": 4, "torch.float16": 2, "torch.bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeEdgeProfile:
    """What the files say about one model on some hosts."""

    graph: Graph
    """A chain of layers. PipeEdge's layers are quarters of a transformer block."""
    costs: CostTable
    """Seconds of the forwards, linear in the samples. Nothing else was measured."""
    cluster: Cluster


# The fields are spelled as in the files.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    __pydantic_config__ = _FORBID

    layers: int
    mem_MB: tuple[float, ...]
    parameters_in: int
    parameters_out: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    __pydantic_config__ = _FORBID

    batch_size: int
    dtype: str
    time_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceType:
    __pydantic_config__ = _FORBID

    bw_Mbps: float
    mem_MB: float
    model_profiles: dict[str, tuple[_Profile, ...]] | None = None


def read_pipeedge(
    folder: str | Path, *, model: str | None = None, hosts: Mapping[str, int] | None = None, samples: int | None = None
) -> PipeEdgeProfile:
    """Return a model's graph and costs and the cluster of PipeEdge's hosts.

    The bandwidth between two hosts is the smaller of their types'. A layer's memory counts as its parameters.

    Args:
        folder: with `models.yml`, `device_types.yml` and, unless `hosts` are given, `devices.yml`.
        model: its name in `models.yml`; None: the only one with layers.
        hosts: the number of hosts, by device type; None: as `devices.yml` lists them.
        samples: of the profiles to read; None: the only number there is.

    Raises:
        InvalidInput: a file is missing or unreadable, a field is unknown, missing or bad (its key is named), a model or
            device type is unknown, or a type has no profile of the model.

    References:
        Hu et al.: PipeEdge: pipeline parallelism for large-scale model inference on heterogeneous edge devices. DSD
        2022. The format is described in README_Scheduler.md of their repository.
    """
    folder = Path(folder)
    where = str(folder / "models.yml")
    models = {name: from_body(_Model, body, f"{where}, {name}") for name, body in _table(folder / "models.yml").items()}
    name = _chosen(model, [other for other, listed in models.items() if listed.layers], where)
    chosen = models[name]
    for field in ("mem_MB", "parameters_out"):
        if len(getattr(chosen, field)) != chosen.layers:
            what = f"has {len(getattr(chosen, field))} entries for {chosen.layers} layers"
            raise InvalidInput(what, where=f"{where}, {name}.{field}", remedy="List one per layer.")
    types, listed = _types(folder), dict(hosts) if hosts is not None else _hosts(folder)
    used = {kind: count for kind, count in listed.items() if count}
    for kind in used:
        if kind not in types:
            what = f"hosts of type '{kind}' are listed, which device_types.yml does not describe"
            raise InvalidInput(what, where=str(folder), remedy=nearest(kind, list(types)))
    if not used:
        raise InvalidInput("no hosts are listed", where=str(folder), remedy="Give the number of hosts of a type.")
    profiles = {kind: _profile(types[kind], name, chosen.layers, samples, f"{folder}, {kind}") for kind in used}
    sizes = {_BYTES[profile.dtype] for profile in profiles.values()}
    if len(sizes) > 1:
        raise InvalidInput("device types were profiled with dtypes of different size", where=str(folder))
    graph = _graph(name, chosen, sizes.pop(), where)
    rows = tuple(_row(op.name, kind, profiles[kind], at) for kind in used for at, op in enumerate(graph.ops))
    costs = CostTable(graph_fingerprint=graph.fingerprint, rows=rows)
    return PipeEdgeProfile(graph=graph, costs=costs, cluster=_cluster({kind: types[kind] for kind in used}, used))


def _table(path: Path) -> Mapping[str, object]:
    body = read_yaml(path)
    if not isinstance(body, dict):
        raise InvalidInput("is not a table of names", where=str(path), remedy="See README_Scheduler.md of PipeEdge.")
    return {str(key): value for key, value in body.items()}


def _chosen(name: str | None, known: list[str], where: str) -> str:
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise InvalidInput(f"has {len(known)} models", where=where, remedy=f"Name one: {', '.join(known)}.")
    if name not in known:
        raise InvalidInput(f"has no model '{name}'", where=where, remedy=nearest(name, known))
    return name


def _types(folder: Path) -> dict[str, _DeviceType]:
    path = folder / "device_types.yml"
    return {kind: from_body(_DeviceType, body, f"{path}, {kind}") for kind, body in _table(path).items()}


def _hosts(folder: Path) -> dict[str, int]:
    path, counts = folder / "devices.yml", dict[str, int]()
    for kind, names in _table(path).items():
        if not isinstance(names, list):
            raise InvalidInput("is not a list of hosts", where=f"{path}, {kind}", remedy="Write a list.")
        counts[kind] = len(names)
    return counts


def _profile(kind: _DeviceType, model: str, layers: int, samples: int | None, where: str) -> _Profile:
    rows = (kind.model_profiles or {}).get(model, ())
    fitting = [row for row in rows if samples in (None, row.batch_size)]
    if len(fitting) != 1:
        batches = ", ".join(str(row.batch_size) for row in rows) or "none"
        what = f"has {len(fitting)} profiles of '{model}'{f' for {samples} samples' if samples else ''}"
        raise InvalidInput(what, where=where, remedy=f"Choose the samples of one (there are: {batches}).")
    row = fitting[0]
    if row.dtype not in _BYTES:
        raise InvalidInput(f"dtype is '{row.dtype}'", where=where, remedy=nearest(row.dtype, list(_BYTES)))
    if row.batch_size < 1 or len(row.time_s) != layers:
        what = f"has {len(row.time_s)} times for {layers} layers, and batch_size {row.batch_size}"
        raise InvalidInput(what, where=f"{where}, {model}", remedy="Give one time per layer, and at least 1 sample.")
    return row


def _graph(name: str, model: _Model, size: int, where: str) -> Graph:
    names = [f"layer.{number}" for number in range(1, model.layers + 1)]
    sent = [size * check_amount(count, f"{where}, {name}.parameters_out") for count in model.parameters_out]
    held = [MEGA * check_amount(count, f"{where}, {name}.mem_MB") for count in model.mem_MB]
    ops = [
        Op(name=unit, kind="layer", parameters=(f"{unit}.weight",), parameter_bytes=memory, output_bytes_per_sample=out)
        for unit, memory, out in zip(names, held, sent, strict=True)
    ]
    pairs = zip(names[:-1], names[1:], sent[:-1], strict=True)
    edges = [Edge(source=one, target=other, bytes_per_sample=count) for one, other, count in pairs]
    return Graph(name=name.split("/")[-1], ops=tuple(ops), edges=tuple(edges))


def _row(op: str, kind: str, profile: _Profile, at: int) -> OpCost:
    seconds = Curve(lines=((0.0, profile.time_s[at] / profile.batch_size),))
    return OpCost(
        op=op,
        device_type=kind,
        forward=seconds,
        input_gradient=Curve(),
        weight_gradient=Curve(),
        source="imported",
    )


def _cluster(types: Mapping[str, _DeviceType], hosts: Mapping[str, int]) -> Cluster:
    devices = [
        Device(name=f"{kind}-host{number}/{kind}-0", type=kind, node=f"{kind}-host{number}")
        for kind, count in hosts.items()
        for number in range(count)
    ]
    fastest = max(described.bw_Mbps for described in types.values())
    slower = [
        PairLink(first=one.name, second=other.name, link=_link(rate))
        for at, one in enumerate(devices)
        for other in devices[at + 1 :]
        if (rate := min(types[one.type].bw_Mbps, types[other.type].bw_Mbps)) < fastest
    ]
    return Cluster(
        name="pipeedge",
        device_types=tuple(
            # Only memory is in the profiles. The other figures are not used, because all costs are measured.
            DeviceType(
                name=name,
                memory_bytes=described.mem_MB * MEGA,
                peak_flops_per_second=1e9,
                memory_bytes_per_second=1e9,
                launch_seconds=0.0,
                half_peak_flops=0.0,
            )
            for name, described in types.items()
        ),
        devices=tuple(devices),
        intra_node=_link(fastest),
        inter_node=_link(fastest),
        pair_links=tuple(slower),
    )


def _link(megabits: float) -> Link:
    return Link(latency_seconds=0.0, bandwidth_bytes_per_second=megabits * MEGA / 8)
