"""Verify the devices of stages and replicas. Everything is derived only from the plan's graph, cluster and stages."""

from dataclasses import replace
from typing import NamedTuple

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.errors import InvalidInput
from graphpipe.graph import Exchanges, Graph, Op
from graphpipe.plans.stage import PlanFields, Predictor, Stage, StageEdge, WeightPolicy

BY_HAND = "hand"
"""The planner of plans that a person wrote."""


def check_devices(plan: PlanFields) -> None:
    """Check that stages have devices of the cluster, each at most once (C3). The memory of several stages is summed.

    Raises:
        InvalidInput: a stage has none, one twice, or one that does not exist.
    """
    for stage in plan.stages:
        where = f"stage '{stage.name}'"
        if not stage.devices:
            raise InvalidInput("has no device", where=where)
        if len(set(stage.devices)) < len(stage.devices):
            raise InvalidInput(f"lists a device twice: {list(stage.devices)}", where=where)
        for device in stage.devices:
            if not 0 <= device < len(plan.cluster.devices):
                raise InvalidInput(
                    f"uses device {device}, but cluster '{plan.cluster.name}' has devices "
                    f"0 to {len(plan.cluster.devices) - 1}",
                    where=where,
                )


def replica_of(plan: PlanFields, stage: Stage, sample: int) -> int:
    """Return the replica of a stage that computes a sample of the mini-batch.

    Of n samples of a micro-batch, replica r of d begins with sample n r / d, rounded down.
    """
    inside = sample % stage.micro_batch
    count = min(stage.micro_batch, plan.batch_size - sample + inside)
    return ((inside + 1) * stage.degree - 1) // count


def check_ranks(plan: PlanFields) -> None:
    """Check stages whose replicas are shared by several devices.

    1. The devices of a stage are whole replicas, and so is its `tensor`.
    2. Every operator that is shared out can be shared by so many.
    3. The devices of a replica are on one node, unless a person chose them.
    4. They do the same tasks: each hosts the same replicas of the same stages.

    Raises:
        InvalidInput: one of these does not hold. The stage and both sides are named.
    """
    for stage in plan.stages:
        if stage.tensor < 1:
            where = f"stage '{stage.name}'"
            raise InvalidInput(f"tensor is {stage.tensor}, must be at least 1", where=where)
        if stage.tensor > 1:
            _check_stage(plan, stage)


def _check_stage(plan: PlanFields, stage: Stage) -> None:
    where, count = f"stage '{stage.name}'", len(stage.devices)
    if count % stage.tensor:
        what = f"{count} devices are no whole replicas of {stage.tensor} devices each"
        raise InvalidInput(what, where=where, remedy="List a multiple of `tensor` devices, replica by replica.")
    for name in stage.ops:
        shards = plan.graph[name].shards
        if shards is not None and not shards.shared_by(stage.tensor):
            what = f"operator '{name}' can be shared by {shards.most} devices or a divisor of it, but tensor is"
            raise InvalidInput(f"{what} {stage.tensor}", where=where, remedy=f"Choose a divisor of {shards.most}.")
    hosted = _hosted(plan)
    for first in range(0, count, stage.tensor):
        _check_replica(plan, stage.devices[first : first + stage.tensor], hosted, where)


def _check_replica(
    plan: PlanFields, devices: tuple[int, ...], hosted: dict[int, set[tuple[int, int]]], where: str
) -> None:
    one, *others = devices
    for other in others:
        here, there = plan.cluster.devices[one], plan.cluster.devices[other]
        if here.node != there.node and plan.planner != BY_HAND:
            what = f"'{here.name}' on node '{here.node}' and '{there.name}' on '{there.node}' share a replica"
            remedy = "Choose devices of one node, or write the stages by hand to allow several."
            raise InvalidInput(what, where=where, remedy=remedy)
        if hosted[one] != hosted[other]:
            mine, other_stages = ({plan.stages[at].name for at, _ in hosted[device]} for device in (one, other))
            what = (
                f"'{here.name}' and '{there.name}' share a replica, but host different replicas or stages: "
                f"{sorted(mine)} and {sorted(other_stages)}"
            )
            raise InvalidInput(what, where=where, remedy="Let the same devices share all of their stages.")


def _hosted(plan: PlanFields) -> dict[int, set[tuple[int, int]]]:
    """Return the stages of each device, with the replica that it computes of each."""
    hosted: dict[int, set[tuple[int, int]]] = {}
    for number, stage in enumerate(plan.stages):
        for place, device in enumerate(stage.devices):
            hosted.setdefault(device, set()).add((number, place // stage.tensor))
    return hosted


class _OfRank(NamedTuple):
    """A plan whose operators have the bytes that one of the devices holds that share a replica."""

    graph: Graph
    cluster: Cluster
    costs: CostTable
    batch_size: int
    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]
    weights: WeightPolicy
    predictor: Predictor
    trains: bool
    planner: str


def of_rank(plan: PlanFields, stage: Stage) -> PlanFields:
    """Return the plan with the bytes of operators on one device of a stage. Its fingerprints do not fit together."""
    if stage.tensor == 1:
        return plan
    inside = {op.name: op for op in plan.graph.ops}
    graph = replace(
        plan.graph,
        ops=tuple(_held_op(plan.graph, op, stage.tensor) for op in plan.graph.ops),
        shared=tuple(
            replace(tied, bytes=tied.bytes / (1 if _kept_whole(plan.graph, tied.name) else stage.tensor))
            for tied in plan.graph.shared
        ),
    )
    rows = tuple(_held_row(plan.graph, row, inside[row.op], stage.tensor) for row in plan.costs.rows)
    return _OfRank(
        graph=graph,
        cluster=plan.cluster,
        costs=replace(plan.costs, rows=rows),
        batch_size=plan.batch_size,
        stages=plan.stages,
        edges=plan.edges,
        weights=plan.weights,
        predictor=plan.predictor,
        trains=plan.trains,
        planner=plan.planner,
    )


def _kept_whole(graph: Graph, parameter: str) -> bool:
    """Whether an operator that holds a parameter does not divide it."""
    return any(
        op.shards is None or parameter not in {name for name, _ in op.shards.parameters}
        for op in graph.ops
        if parameter in op.parameters
    )


def _held_op(graph: Graph, op: Op, ranks: int) -> Op:
    if op.shards is None:
        return op
    divided, named = op.shards.parameter_bytes, {name for name, _ in op.shards.parameters}
    divided -= sum(tied.bytes for tied in graph.shared if tied.name in named and _kept_whole(graph, tied.name))
    weights = _part(op.parameter_bytes, divided, ranks)
    divided, sequence = op.shards.figures.saved_bytes_per_sample, op.shards.sequence
    if sequence is not None and sequence.used and not sequence.most % ranks:
        divided = sequence.figures.saved_bytes_per_sample  # of the layers, and of the positions between them
    saved = _part(op.work.saved_bytes_per_sample, divided, ranks)
    casts = op.work.saved_bytes_per_forward * (weights / op.parameter_bytes if op.parameter_bytes else 1.0)
    work = replace(op.work, saved_bytes_per_sample=saved, saved_bytes_per_forward=casts)
    return replace(op, parameter_bytes=weights, work=work)


def _part(whole: float, divided: float, ranks: int) -> float:
    """Return what a rank has of an amount of which a part is divided by the number of ranks."""
    divided = min(whole, max(0.0, divided))
    return whole - divided + divided / ranks


def _held_row(graph: Graph, row: OpCost, op: Op, ranks: int) -> OpCost:
    # What was measured of fewer ranks is nearer than what was measured of one.
    measured = [1, *(each.ranks or 1 for each in row.shared)]
    nearest = max(count for count in measured if ranks % count == 0)
    # What was measured of whole operators, such as saved bytes of compiled ones, does not hold.
    row = replace(next((each for each in row.shared if each.ranks == nearest), row), saved=None, between_halves=None)
    if row.temporaries is None or op.shards is None:
        return row
    known, held = _held_op(graph, op, nearest), _held_op(graph, op, ranks)
    weights, saved = known.parameter_bytes, known.work.saved_bytes_per_sample
    once = held.parameter_bytes / weights if weights else 1.0
    each = held.work.saved_bytes_per_sample / saved if saved else 1.0

    def scaled(curve: Curve, exchanged: Exchanges) -> Curve:
        # An exchange of shards of the sequence holds the values of all ranks, and as much in its message.
        more = 2 * exchanged.bytes_per_sample / exchanged.reductions if exchanged.reductions else 0.0
        lines = curve.lines or (((0.0, 0.0),) if more else ())
        return Curve(lines=tuple((fixed * once, slope * each + more) for fixed, slope in lines))

    held_too, sequence = row.temporaries, op.shards.sequence
    if sequence is None or not sequence.used or sequence.most % ranks:
        forward, backward = scaled(held_too.forward, Exchanges()), scaled(held_too.backward, Exchanges())
    else:
        forward = scaled(held_too.forward, sequence.figures.forward)
        back = sequence.figures.backward
        backward = scaled(held_too.backward, back if back.reductions else sequence.figures.weights)
    kept = row.temporaries.loss_bytes_per_sample
    if any(each.style == "vocabulary-logits" for each in op.shards.submodules):
        kept /= ranks  # no rank has the logits of another one
    held = replace(row.temporaries, forward=forward, backward=backward, loss_bytes_per_sample=kept)
    return replace(row, temporaries=held)
