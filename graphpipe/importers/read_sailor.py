"""Import of Sailor's profiles and plans: a folder of JSON files, as Sailor's profiler and planner write them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostTable, OpCost
from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.importers.aceso_cluster import UNKNOWN_RATE
from graphpipe.importers.aceso_costs import curve_through
from graphpipe.importers.sailor_files import Group, LayerSeconds, SailorFiles, SailorPipeline, SailorRun
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.verify import verify

NODE_GPUS = 4
"""Assumed GPUs of a node, which the files do not record: those of the published runs."""
_STATE = 4.0
"""Weights, gradients and two moments of Adam in fp32, in units of the weights."""


def read_sailor(folder: str | Path, name: str, *, node_gpus: int = NODE_GPUS) -> Plan:
    """Return a plan that Sailor made, with the graph, the costs and the cluster that its profiles describe.

    A tensor-parallel group is one device of the plan, of a type for its GPUs and its degree. Sends and receives block
    the devices at both ends, one after the other. A message is a whole activation, which one GPU of a group sends.
    Every plan is scheduled as 1F1B. A device has as much memory as the plan needs, because the plan was run.

    Args:
        folder: with `profile.json`, `model.json`, `links.json` and `runs`.
        name: of the plan's file in `runs`, without `.json`.
        node_gpus: GPUs of a node. Groups fill one node after the other.

    Raises:
        InvalidInput: a file is missing or cannot be used, or a profile lacks what the plan runs.

    References:
        Strati et al.: Sailor: automating distributed training over dynamic, heterogeneous, and geo-distributed
        clusters. SOSP 2025.
    """
    files = SailorFiles.load(folder)
    run = files.run(name)
    (pipeline,) = run.pipeline_list
    where = str(files.runs[name])
    kinds = _kinds(pipeline, where)
    graph = _graph(files, pipeline, name, where)
    costs = _costs(files, run, graph, kinds, where)
    stages = _stages(run, pipeline, graph, where)
    edges = _stage_edges(graph, stages)
    cluster = _cluster(files, pipeline, kinds, _message_bytes(run, graph, edges), name, node_gpus)
    plan = Plan(
        graph=graph,
        cluster=cluster,
        costs=costs,
        batch_size=run.gbs,
        stages=stages,
        edges=edges,
        planner="sailor",
    )
    memory = max(needed_bytes(plan).values())
    roomy = tuple(replace(kind, memory_bytes=memory) for kind in cluster.device_types)
    plan = replace(plan, cluster=replace(cluster, device_types=roomy))
    verify(plan)
    return plan


def _gpu(group: Group, where: str) -> tuple[str, int]:
    # The type and the degree of a replica, which must be one tensor-parallel group of equal GPUs.
    gpus, degree = group
    types = {gpu for gpu, _, _ in gpus}
    if len(types) != 1 or sum(count for _, count, _ in gpus) != degree:
        listed = " + ".join(f"{count} {gpu}" for gpu, count, _ in gpus)
        what = f"is a replica of {listed} with tensor-parallel degree {degree}"
        remedy = "A replica must be as many equal GPUs as its degree."
        raise InvalidInput(what, where=f"{where}, tmp_per_stage", remedy=remedy)
    return types.pop(), degree


def _kinds(pipeline: SailorPipeline, where: str) -> dict[tuple[str, int], str]:
    # The device types of the plan, by GPU and degree.
    groups = (group for stage in pipeline.tmp_per_stage for group in stage)
    found = dict.fromkeys(_gpu(group, where) for group in groups)
    return {(gpu, degree): f"{gpu}-tp{degree}" for gpu, degree in found}


def _graph(files: SailorFiles, pipeline: SailorPipeline, name: str, where: str) -> Graph:
    # A chain of layers, with the sizes on a GPU of the group that ran each.
    ops: list[Op] = []
    for stage, layers in enumerate(pipeline.layers_per_stage):
        _, degree = _gpu(pipeline.tmp_per_stage[stage][0], where)
        for layer in layers:
            size = files.layers.get(degree, {}).get(layer)
            if size is None:
                what = f"lacks layer {layer} at tensor-parallel degree {degree}, which {where} runs"
                raise InvalidInput(what, where=f"{files.folder / 'model.json'}, layers")
            ops.append(
                Op(
                    name=f"layer{layer}",
                    parameter_bytes=size.params_bytes,
                    parameters=(f"layer{layer}.weights",),
                    output_bytes_per_sample=size.act_output_bytes,
                    work=Work(saved_bytes_per_sample=size.act_mem_bytes),
                )
            )
    edges = tuple(
        Edge(source=one.name, target=other.name, bytes_per_sample=one.output_bytes_per_sample)
        for one, other in pairwise(ops)
    )
    return Graph(name=name, ops=tuple(ops), edges=edges)


def _message_bytes(run: SailorRun, graph: Graph, edges: Sequence[StageEdge]) -> float:
    # The bytes of the largest message between stages; without any, of what a layer would send.
    sent = [edge.bytes_per_sample for edge in edges] or [op.output_bytes_per_sample for op in graph.ops]
    return run.mbs * max(sent)


def _cluster(
    files: SailorFiles,
    pipeline: SailorPipeline,
    kinds: dict[tuple[str, int], str],
    message_bytes: float,
    name: str,
    node_gpus: int,
) -> Cluster:
    devices = tuple(_devices(pipeline, kinds, node_gpus))
    intra, inter = (_link(files, kind, {gpu for gpu, _ in kinds}, message_bytes) for kind in ("intra", "inter"))
    return Cluster(
        name=f"{name} ({len(devices)} groups)",
        device_types=tuple(
            DeviceType(
                name=kind,
                memory_bytes=2.0**60,
                peak_flops_per_second=UNKNOWN_RATE,
                memory_bytes_per_second=UNKNOWN_RATE,
                launch_seconds=0.0,
                half_peak_flops=0.0,
            )
            for kind in kinds.values()
        ),
        devices=devices,
        intra_node=intra,
        inter_node=inter,
        overlap=False,
        duplex=False,
    )


def _devices(pipeline: SailorPipeline, kinds: dict[tuple[str, int], str], node_gpus: int) -> Iterator[Device]:
    used: dict[tuple[str, str], int] = {}
    for stage in pipeline.tmp_per_stage:
        for gpus, degree in stage:
            gpu, _, zone = gpus[0]
            first = used.get((gpu, zone), 0)
            used[gpu, zone] = first + degree
            node = f"{zone}-{gpu}-{first // max(node_gpus, degree)}"
            yield Device(name=f"{node}/{first}", type=kinds[gpu, degree], node=node)


def _link(files: SailorFiles, kind: str, gpus: set[str], count: float) -> Link:
    # One GPU sends; curves are measured with 1, 2, ... GPUs of a node that send at once.
    rates: list[float] = []
    for gpu in sorted(gpus):
        curves = files.links.get(kind, {}).get(gpu, {})
        if not curves:
            raise InvalidInput(f"has no curve '{kind}' for {gpu}", where=str(files.folder / "links.json"))
        senders, curve = min(curves.items())
        rates.append(curve.bytes_per_second(count * senders) / senders)
    return Link(latency_seconds=0.0, bandwidth_bytes_per_second=min(rates))


def _costs(
    files: SailorFiles, run: SailorRun, graph: Graph, kinds: dict[tuple[str, int], str], where: str
) -> CostTable:
    rows: list[OpCost] = []
    updates: list[float] = []
    for (gpu, degree), kind in kinds.items():
        measured = files.profile.get(gpu, {})
        by_samples = {samples: by_degree[degree] for samples, by_degree in measured.items() if degree in by_degree}
        if run.mbs not in by_samples:
            what = f"lacks {gpu} with {run.mbs} samples at tensor-parallel degree {degree}, which {where} runs"
            raise InvalidInput(what, where=str(files.folder / "profile.json"))
        for position, op in enumerate(graph.ops):
            layer = int(op.name.removeprefix("layer"))
            seconds = {samples: layers[layer] for samples, layers in by_samples.items() if layer in layers}
            if run.mbs not in seconds:
                what = f"lacks layer {layer} of {gpu} with {run.mbs} samples, which {where} runs"
                raise InvalidInput(what, where=str(files.folder / "profile.json"))
            rows.append(_row(op.name, kind, seconds, run.mbs, first=position == 0))
            updates.append(seconds[run.mbs][2])
    return CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=tuple(rows),
        state_bytes_per_parameter_byte=_STATE,
        optimizer_seconds_per_parameter_byte=sum(updates) / (len(kinds) * sum(op.parameter_bytes for op in graph.ops)),
    )


def _row(name: str, kind: str, seconds: dict[int, LayerSeconds], samples: int, *, first: bool) -> OpCost:
    # Only the sum of both gradients was measured. If both are needed, each takes half of it.
    inputs = 0.0 if first else 0.5
    return OpCost(
        op=name,
        device_type=kind,
        forward=curve_through({count: times[0] for count, times in seconds.items()}, samples),
        input_gradient=curve_through({count: inputs * times[1] for count, times in seconds.items()}, samples),
        weight_gradient=curve_through({count: (1 - inputs) * times[1] for count, times in seconds.items()}, samples),
        source="imported",
    )


def _stages(run: SailorRun, pipeline: SailorPipeline, graph: Graph, where: str) -> tuple[Stage, ...]:
    degrees = [len(groups) for groups in pipeline.tmp_per_stage]
    sizes = [run.mbs * degree for degree in degrees]
    for stage, size in enumerate(sizes):
        if not size or run.gbs % size:
            what = f"{run.gbs} samples do not divide into micro-batches of {run.mbs} on {degrees[stage]} replicas"
            raise InvalidInput(what, where=f"{where}, stage {stage}")
    count = len(sizes)
    following = [[stage + 1] if stage + 1 < count else [] for stage in range(count)]
    in_flight = in_flight_samples(run.gbs, sizes, [1] * count, following)
    stages: list[Stage] = []
    op = device = 0
    for stage, layers in enumerate(pipeline.layers_per_stage):
        stages.append(
            Stage(
                name=f"s{stage}",
                ops=tuple(each.name for each in graph.ops[op : op + len(layers)]),
                devices=tuple(range(device, device + degrees[stage])),
                micro_batch=sizes[stage],
                in_flight=in_flight[stage],
            )
        )
        op, device = op + len(layers), device + degrees[stage]
    return tuple(stages)


def _stage_edges(graph: Graph, stages: Sequence[Stage]) -> tuple[StageEdge, ...]:
    return tuple(
        StageEdge(source=at, target=at + 1, bytes_per_sample=graph[stage.ops[-1]].output_bytes_per_sample)
        for at, stage in enumerate(stages[:-1])
    )
