"""Small plans with costs that are easy to compute by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostTable, Curve, OpCost, Recompute, State, Temporaries
from graphpipe.graph import Edge, Graph, Op, Shared, Work
from graphpipe.plans import Plan, Stage, StageEdge


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stage of one operator. Seconds are per sample on one device and scale linearly."""

    micro_batch: int = 1
    degree: int = 1
    forward: float = 1.0
    backward: float = 2.0
    parameter_bytes: float = 0.0
    saved_bytes: float = 0.0
    burst: int = 1
    devices: tuple[int, ...] | None = None
    """None takes the next `degree` devices."""
    in_flight: int | None = None
    """None takes the fewest samples that keep the pipeline continuous."""
    recompute: Recompute = "none"
    offloads: bool = False
    neighbour: int | None = None
    """The device to which the one device of the stage offloads."""
    state: State = "whole"
    temporaries: Temporaries | None = None


def chain(count: int, bytes_per_sample: float = 0.0) -> list[tuple[int, int, float]]:
    """Edges of a chain of `count` stages."""
    return [(stage, stage + 1, bytes_per_sample) for stage in range(count - 1)]


def make_plan(
    parts: Sequence[Part],
    edges: Sequence[tuple[int, int, float]] | None = None,
    *,
    batch_size: int = 8,
    schedule: str = "1f1b",
    link: Link | None = None,
    overlap: bool = True,
    cores_per_node: int | None = None,
    optimizer_seconds_per_parameter_byte: float = 0.0,
    device_count: int | None = None,
) -> Plan:
    """Return a plan of these stages (in topological order) and edges (source, target, bytes per sample).

    Without edges the stages form a chain that sends zero bytes. The default link moves one byte per
    second, without latency.
    """
    edges = chain(len(parts)) if edges is None else edges
    devices = place(parts)
    graph = _graph(parts, edges)
    used = 1 + max(device for group in devices for device in group)
    link = link or Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    cluster = replace(_cluster(device_count or used, link), overlap=overlap, cores_per_node=cores_per_node)
    in_flight = needed_in_flight(parts, edges, batch_size)
    whole = schedule == "gpipe"
    return Plan(
        graph=graph,
        cluster=cluster,
        costs=_costs(parts, graph, optimizer_seconds_per_parameter_byte),
        batch_size=batch_size,
        stages=tuple(
            Stage(
                name=f"s{number}",
                ops=(f"s{number}",),
                devices=devices[number],
                micro_batch=part.micro_batch,
                in_flight=part.in_flight or (batch_size if whole else in_flight[number]),
                burst=part.burst,
                recompute=part.recompute,
                offload=(f"s{number}",) if part.offloads else (),
                offload_to=() if part.neighbour is None else (part.neighbour,),
                state=part.state,
            )
            for number, part in enumerate(parts)
        ),
        edges=tuple(StageEdge(source=s, target=t, bytes_per_sample=b) for s, t, b in edges),
        schedule=schedule,
    )


def temporaries(forward: float, backward: float, *, fixed: float = 0.0, loss: float = 0.0) -> Temporaries:
    """Return temporary bytes per sample, and the fixed bytes of the backward."""
    return Temporaries(
        forward=Curve(lines=((0.0, forward),)), backward=Curve(lines=((fixed, backward),)), loss_bytes_per_sample=loss
    )


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    batch_size: int = 16,
    schedules: Sequence[str] = ("1f1b", "kfkb", "gpipe"),
    costs: Sequence[float] = (0.5, 1.0, 3.0, 3.1, 10.0),
    quick: bool = False,
    shared: bool | None = None,
    offloads: bool = True,
) -> Plan:
    """Random stage graphs with mixed costs, micro-batch sizes, degrees and bursts.

    Unless `quick`, stages may share devices and offload to neighbours, devices may share cores, and transfers may
    occupy the devices. `shared` says whether stages share devices, `offloads` whether some may offload.
    """
    count = draw(st.integers(1, 6))
    shared = not quick and draw(st.booleans()) if shared is None else shared
    schedule = draw(st.sampled_from(schedules))
    seconds = st.sampled_from(costs)
    parts: list[Part] = []
    for number in range(count):
        size = draw(st.sampled_from(micro_batches))
        degree = draw(st.sampled_from([degree for degree in (1, 2, 4) if degree <= size]))
        part = Part(
            micro_batch=size,
            degree=degree,
            devices=tuple(draw(st.permutations(range(5)))[:degree]) if shared else None,
            burst=draw(st.sampled_from([1, 2])) if schedule == "kfkb" else 1,
            forward=draw(seconds),
            backward=draw(seconds),
            parameter_bytes=draw(st.sampled_from([0.0, 5.0])),
            saved_bytes=draw(st.sampled_from([0.0, 3.0])),
            recompute=(recompute := draw(st.sampled_from(["none", "none", "full", (f"s{number}",)]))),
            offloads=offloads and recompute == "none" and draw(st.booleans()),
            state=draw(st.sampled_from(["whole", "whole", "optimizer", "all", "layers"])),
        )
        parts.append(part)
    used = {device for group in place(parts) for device in group}
    for number, (part, own) in enumerate(zip(parts, place(parts), strict=True)):
        if not quick and part.offloads and part.degree == 1 and (others := sorted(used.difference(own))):
            parts[number] = replace(part, neighbour=draw(st.sampled_from([None, *others])))
    edges = [(s, t, draw(seconds)) for t in range(count) for s in range(t) if draw(st.integers(0, t - s)) == 0]
    return make_plan(
        parts,
        edges,
        batch_size=batch_size,
        schedule=schedule,
        link=Link(latency_seconds=draw(st.sampled_from([0.0, 1.0])), bandwidth_bytes_per_second=4.0),
        overlap=quick or draw(st.booleans()),
        cores_per_node=None if quick else draw(st.sampled_from([None, 2])),
        optimizer_seconds_per_parameter_byte=0.5,
    )


def share(plan: Plan, stages: Sequence[int], count: float, name: str = "tied") -> Plan:
    """Return the plan with a parameter of `count` bytes that the operators of these stages share."""
    inside = {op for number in stages for op in plan.stages[number].ops}
    ops = tuple(
        replace(op, parameters=(*op.parameters, name), parameter_bytes=op.parameter_bytes + count)
        if op.name in inside
        else op
        for op in plan.graph.ops
    )
    graph = replace(plan.graph, ops=ops, shared=(*plan.graph.shared, Shared(name=name, bytes=count)))
    return replace(plan, graph=graph, costs=replace(plan.costs, graph_fingerprint=graph.fingerprint))


def crossed() -> tuple[Plan, str]:
    """Return a plan and schedule in which the last backward of one replica depends on that of the other replica.

    Stage 1 has replicas on devices 1 and 2. Device 2 also hosts stage 0. The first backward of stage 0 needs only the
    gradients from device 1, and runs before the backward of stage 1 on device 2.
    """
    parts = [
        Part(micro_batch=2, devices=(2,), parameter_bytes=1.0),
        Part(micro_batch=4, degree=2, devices=(1, 2), parameter_bytes=1.0),
        Part(micro_batch=4, devices=(0,)),
    ]
    plan = make_plan(parts, chain(3, 1.0), batch_size=4, schedule="gpipe")
    return plan, "schedule by-hand\n0: F2.0 B2.0\n1: F1.0 B1.0\n2: F0.0 F0.1 F1.0 B0.0 B1.0 B0.1\n"


def place(parts: Sequence[Part]) -> list[tuple[int, ...]]:
    """Return the devices of each stage: the given ones, or the next free ones."""
    placed: list[tuple[int, ...]] = []
    free = 0
    for part in parts:
        placed.append(part.devices or tuple(range(free, free + part.degree)))
        free = max(free, 1 + max(placed[-1]))
    return placed


def needed_in_flight(parts: Sequence[Part], edges: Sequence[tuple[int, int, float]], batch_size: int) -> list[int]:
    """Return in_flight(x) = max over successors y of in_flight(y) + max(k_x b_x, k_y b_y), at most the batch."""
    needed = [0] * len(parts)
    for number in reversed(range(len(parts))):
        part = parts[number]
        own = part.burst * part.micro_batch
        samples = own
        for source, target, _ in edges:
            if source == number:
                after = parts[target]
                samples = max(samples, needed[target] + max(own, after.burst * after.micro_batch))
        samples = -(-samples // part.micro_batch) * part.micro_batch
        needed[number] = min(batch_size, samples)
    return needed


def _graph(parts: Sequence[Part], edges: Sequence[tuple[int, int, float]]) -> Graph:
    ops = tuple(
        Op(
            name=f"s{number}",
            parameters=(f"s{number}.weight",) if part.parameter_bytes else (),
            parameter_bytes=part.parameter_bytes,
            output_bytes_per_sample=max((count for source, _, count in edges if source == number), default=0.0),
            work=Work(saved_bytes_per_sample=part.saved_bytes),
        )
        for number, part in enumerate(parts)
    )
    return Graph(
        name="test",
        ops=ops,
        edges=tuple(Edge(source=f"s{s}", target=f"s{t}", bytes_per_sample=b) for s, t, b in edges),
    )


def _cluster(count: int, link: Link) -> Cluster:
    kind = DeviceType(
        name="unit",
        memory_bytes=1e9,
        peak_flops_per_second=1.0,
        memory_bytes_per_second=1.0,
        launch_seconds=0.0,
        half_peak_flops=0.0,
        host_bandwidth_bytes_per_second=2.0,
    )
    devices = tuple(Device(name=f"d{number}", type="unit", node="n0") for number in range(count))
    return Cluster(name="test", device_types=(kind,), devices=devices, intra_node=link, inter_node=link)


def _costs(parts: Sequence[Part], graph: Graph, optimizer: float) -> CostTable:
    def line(slope: float) -> Curve:
        return Curve(lines=((0.0, slope),))

    rows = tuple(
        OpCost(
            op=f"s{number}",
            device_type="unit",
            forward=line(part.forward),
            input_gradient=line(part.backward / 2),
            weight_gradient=line(part.backward / 2),
            source="analytic",
            temporaries=part.temporaries,
        )
        for number, part in enumerate(parts)
    )
    return CostTable(graph_fingerprint=graph.fingerprint, rows=rows, optimizer_seconds_per_parameter_byte=optimizer)
