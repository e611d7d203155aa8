"""Import of Aceso's profiles and plans: a folder of CSV and JSON files, as Aceso's profiler and planner write them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.importers.aceso_cluster import memory_bytes_per_second, run_cluster
from graphpipe.importers.aceso_costs import Variant, run_costs
from graphpipe.importers.aceso_files import AcesoFiles
from graphpipe.importers.aceso_graph import RunOp, op_names, run_graph
from graphpipe.importers.aceso_links import read_collective
from graphpipe.importers.aceso_plan import AcesoPlan
from graphpipe.importers.aceso_profile import ModelProfiles, positions
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.verify import verify

NODE_GPUS = 8
"""Assumed GPUs of a node, which the files do not record."""
ANY_BYTES = 2.0**60


def read_aceso(
    folder: str | Path,
    name: str,
    *,
    node_gpus: int = NODE_GPUS,
    memory_bytes: float | None = None,
    slow_links: Collection[int] | None = None,
) -> Plan:
    """Return a plan that Aceso made, with the graph, the costs and the cluster that its profiles describe.

    Read are the operator profiles (`MODEL_mbsB_tpT_algoA.csv`), the times of collectives
    (`prim_MODEL_KIND_Ngpus.csv`) and the bandwidths (`p2p_intra_node.csv`, `p2p_inter_node.csv`), wherever they lie in
    the folder.

    A tensor-parallel group is one device of the plan, of a type for its degree. The costs of an operator on this type
    are those of the variant with this degree. Bytes are those on one GPU of the group that ran the operator. Recomputed
    operators become regions. Every plan is scheduled as 1F1B.

    Args:
        folder: of the files.
        name: of the plan's file, without `.json`.
        node_gpus: GPUs of a node. Aceso fills one node after the other.
        memory_bytes: of a GPU; None: as much as the plan needs, because it was run and the files do not record it.
        slow_links: stages whose groups have the slower collectives, where a profile and the times of collectives
            differ; None: all stages.

    Raises:
        InvalidInput: a file is missing or cannot be used. File, line and column are named.
        Infeasible: the plan needs more than `memory_bytes`.

    References:
        Liu et al.: Aceso: efficient parallel DNN training through iterative bottleneck alleviation. EuroSys 2024.
    """
    if node_gpus < 1:
        raise InvalidInput(f"is {node_gpus}, must be at least 1", where="node_gpus")
    files = AcesoFiles.find(folder)
    path = files.plan(name)
    plan = AcesoPlan.load(path)
    variants = _variants(files, plan)
    ops = _ops(plan, variants, str(path), range(plan.num_stages) if slow_links is None else slow_links)
    names, regions = op_names(ops)
    graph = run_graph(name, ops, names)
    cluster = run_cluster(
        plan,
        files.links,
        variants,
        name=f"{name} ({sum(plan.num_gpus)} GPUs)",
        node_gpus=node_gpus,
        memory_bytes=memory_bytes or ANY_BYTES,
        sequence=plan.seq_length,
    )
    imported = Plan(
        graph=graph,
        cluster=cluster,
        costs=run_costs(graph, ops, variants, memory_bytes_per_second(variants)),
        batch_size=plan.global_batch_size,
        stages=_stages(plan, names, regions),
        edges=_edges(graph, ops),
        planner="aceso",
    )
    if memory_bytes is None:
        imported = replace(imported, cluster=_with_memory(cluster, max(needed_bytes(imported).values())))
    verify(imported)
    return imported


def _variants(files: AcesoFiles, plan: AcesoPlan) -> tuple[Variant, ...]:
    """Return what was measured with every tensor-parallel degree of the plan, and undivided if that was measured."""
    algorithms = {algorithm for stage in plan.algo_of_each_op for algorithm in stage}
    needed = {plan.tensor(stage) for stage in range(plan.num_stages)}
    whole = {1} if all((plan.model, 1, algorithm) in files.ops for algorithm in algorithms) else set[int]()
    variants: list[Variant] = []
    for degree in sorted(needed | whole):
        collective = files.collectives.get((plan.model, "all_reduce", degree))
        profiles = {kind: ModelProfiles.read(files.profiles(plan.model, degree, kind)) for kind in sorted(algorithms)}
        variants.append(
            Variant(degree=degree, profiles=profiles, all_reduce=read_collective(collective) if collective else {})
        )
    return tuple(variants)


def _ops(plan: AcesoPlan, variants: Sequence[Variant], where: str, slow_links: Collection[int]) -> tuple[RunOp, ...]:
    by_degree = {variant.degree: variant for variant in variants}
    profiles = next(iter(variants[0].profiles.values()))
    count = sum(plan.num_ops_in_each_stage)
    placed = iter(positions(profiles.names, plan.num_layers, count, where))
    ops: list[RunOp] = []
    for stage in range(plan.num_stages):
        samples = plan.micro_batch_size // plan.replicas(stage)
        flags = zip(plan.recompute_ops[stage], plan.algo_of_each_op[stage], strict=True)
        for (recompute, algorithm), (row, layer) in zip(flags, placed, strict=False):
            profiles = by_degree[plan.tensor(stage)].profiles[algorithm]
            profiled = profiles.nearest(samples)
            ops.append(
                RunOp(
                    row=row,
                    algorithm=algorithm,
                    layer=layer,
                    profile=profiles.rows[profiled][row],
                    profiled_samples=profiled,
                    stage=stage,
                    recompute=bool(recompute) and plan.checkpoint_activations[stage],
                    slow_links=stage in slow_links,
                )
            )
    return tuple(ops)


def _stages(plan: AcesoPlan, names: Sequence[str], regions: Sequence[tuple[str, ...]]) -> tuple[Stage, ...]:
    count, batch = plan.num_stages, plan.micro_batch_size
    in_flight = in_flight_samples(
        plan.global_batch_size, [batch] * count, [1] * count, [[s + 1] if s + 1 < count else [] for s in range(count)]
    )
    stages: list[Stage] = []
    op = device = 0
    for stage in range(count):
        ops, devices = plan.num_ops_in_each_stage[stage], plan.replicas(stage)
        stages.append(
            Stage(
                name=f"s{stage}",
                ops=tuple(names[op : op + ops]),
                devices=tuple(range(device, device + devices)),
                micro_batch=batch,
                in_flight=in_flight[stage],
                recompute=regions[stage] or "none",
            )
        )
        op, device = op + ops, device + devices
    return tuple(stages)


def _edges(graph: Graph, ops: Sequence[RunOp]) -> tuple[StageEdge, ...]:
    """Return the edges between stages. A value that several operators of a stage read is sent once."""
    stage_of = {op.name: run.stage for op, run in zip(graph.ops, ops, strict=True)}
    sent: dict[tuple[int, int], dict[str, float]] = {}
    for edge in graph.edges:
        pair = stage_of[edge.source], stage_of[edge.target]
        if pair[0] != pair[1]:
            outputs = sent.setdefault(pair, {})
            outputs[edge.source] = max(outputs.get(edge.source, 0.0), edge.bytes_per_sample)
    return tuple(
        StageEdge(source=source, target=target, bytes_per_sample=sum(outputs.values()))
        for (source, target), outputs in sorted(sent.items())
    )


def _with_memory(cluster: Cluster, memory_bytes: float) -> Cluster:
    types = (replace(kind, memory_bytes=memory_bytes) for kind in cluster.device_types)
    return replace(cluster, device_types=tuple(types))
