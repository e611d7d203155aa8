"""EdgePipe's planner against its published profiles and brute force."""

import csv
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpipe as gp
from graphpipe.cluster import Cluster, Device, DeviceType, Link, PairLink
from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Edge, Graph, Op
from graphpipe.importers.read_pipeedge import read_pipeedge
from graphpipe.planners.baselines.edgepipe import plan_edgepipe
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import period_seconds
from graphpipe.plans.verify import verify

PROFILES = Path(__file__).parents[3].parent / "shared" / "data" / "pipeedge"
OPTIONS = Options(evaluate=period_seconds, micro_batch=8)


@pytest.mark.slow
@pytest.mark.skipif(not PROFILES.exists(), reason="the published profiles are not here")
def test_every_published_schedule_has_its_bottleneck() -> None:
    """ViT-Base on 4 + 4 devices at 1 Gb/s: 1.549 s; ViT-Large: 5.043 s. Infeasible where nothing fits."""
    with (PROFILES / "expected_schedules.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 66
    for row in rows:
        hosts = {"Minnowboard-E3845": int(row["n_minnowboard"]), "RCC-VE-C2000": int(row["n_rcc"])}
        profile = read_pipeedge(PROFILES, model=row["model"], hosts=hosts)
        link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=float(row["bw_Mbps"]) * 2**20 / 8)
        cluster = replace(profile.cluster, intra_node=link, inter_node=link)
        problem = Problem(profile.graph, profile.costs, cluster, 24, trains=False)
        if row["stages"] == "0":
            with pytest.raises(Infeasible, match="fits in memory"):
                plan_edgepipe(problem, OPTIONS)
            continue
        plan = plan_edgepipe(problem, OPTIONS)
        verify(plan)
        assert period_seconds(plan) / 3 == pytest.approx(float(row["bottleneck_s_correct_dp"]), rel=1e-5), row
        assert len(plan.stages) <= int(row["stages"])  # of equal bottlenecks, fewer devices


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Chains of up to 5 operators on up to 4 devices of up to 3 types, with unequal links and little memory."""
    count, devices = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    sizes = st.sampled_from([0.0, 1.0, 2.0, 5.0])
    ops = tuple(
        Op(name=f"o{n}", parameters=(f"o{n}.w",), parameter_bytes=draw(sizes), output_bytes_per_sample=draw(sizes))
        for n in range(count)
    )
    edges = tuple(
        Edge(source=one.name, target=other.name, bytes_per_sample=one.output_bytes_per_sample)
        for one, other in pairwise(ops)
    )
    graph = Graph(name="chain", ops=ops, edges=edges)
    kinds = tuple(
        DeviceType(
            name=f"t{n}",
            memory_bytes=draw(st.sampled_from([8.0, 20.0, 100.0])),
            peak_flops_per_second=1.0,
            memory_bytes_per_second=1.0,
            launch_seconds=0.0,
            half_peak_flops=0.0,
        )
        for n in range(3)
    )
    named = tuple(Device(name=f"d{n}", type=f"t{draw(st.integers(0, 2))}", node=f"n{n}") for n in range(devices))
    slow = st.sampled_from([Link(latency_seconds=0.5, bandwidth_bytes_per_second=rate) for rate in (1.0, 4.0)])
    pairs = tuple(
        PairLink(first=one.name, second=other.name, link=draw(slow))
        for one, other in combinations(named, 2)
        if draw(st.booleans())
    )
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=2.0)
    cluster = Cluster(name="c", device_types=kinds, devices=named, intra_node=link, inter_node=link, pair_links=pairs)
    seconds = st.sampled_from([1.0, 2.0, 3.5])
    rows = tuple(
        OpCost(
            op=op.name,
            device_type=kind.name,
            forward=Curve(lines=((0.0, draw(seconds)),)),
            input_gradient=Curve(),
            weight_gradient=Curve(),
            source="imported",
        )
        for kind in kinds
        for op in ops
    )
    return Problem(graph, CostTable(graph_fingerprint=graph.fingerprint, rows=rows), cluster, 3, trains=False)


def brute_force(problem: Problem, seconds: str) -> float:
    """Return the least seconds of all chains of stages on all choices of devices."""
    best, order = inf, problem.graph.order
    for stages in range(1, min(len(order), len(problem.cluster.devices)) + 1):
        for cuts in combinations(range(1, len(order)), stages - 1):
            bounds = [0, *cuts, len(order)]
            parts = [Part(order[one:other], 1, 1) for one, other in pairwise(bounds)]
            for devices in permutations(range(len(problem.cluster.devices)), stages):
                plan = assemble(
                    problem,
                    parts,
                    planner="test",
                    schedule="forward-only",
                    chain=True,
                    devices=[(device,) for device in devices],
                )
                if memory_shortfall(plan) <= 0:
                    period = period_seconds(plan)
                    best = min(best, period if seconds == "throughput" else _through(plan))
    return best


def _through(plan: gp.Plan) -> float:
    # One micro-batch through all stages.
    costs = plan.cost_model
    forward = sum(costs.task_seconds(stage.ops, stage.devices[0], 1).forward for stage in plan.stages)
    ends = [(plan.stages[edge.source].devices[0], plan.stages[edge.target].devices[0]) for edge in plan.edges]
    pairs = zip(plan.edges, ends, strict=True)
    messages = [costs.transfer_seconds(edge.bytes_per_sample, *between) for edge, between in pairs]
    return forward + sum(messages)


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_the_bottleneck_is_that_of_brute_force(problem: Problem) -> None:
    options = Options(evaluate=period_seconds, micro_batch=1)
    best = brute_force(problem, "throughput")
    try:
        plan = plan_edgepipe(problem, options)
    except Infeasible:
        assert best == inf
        return
    verify(plan)
    assert period_seconds(plan) == pytest.approx(best)


@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_the_way_of_one_micro_batch_is_that_of_brute_force(problem: Problem) -> None:
    options = Options(evaluate=_through, inference_objective="latency", micro_batch=1)
    best = brute_force(problem, "latency")
    try:
        plan = plan_edgepipe(problem, options)
    except Infeasible:
        assert best == inf
        return
    assert _through(plan) == pytest.approx(best)


@settings(max_examples=15, deadline=None)
@given(problem=problems(), objective=st.sampled_from(["throughput", "latency"]))
def test_graphpipe_is_never_worse(problem: Problem, objective: str) -> None:
    def seconds(planner: str) -> float:
        plan = gp.plan(
            problem.graph,
            problem.costs,
            problem.cluster,
            batch_size=3,
            planner=planner,
            inference=True,
            objective=objective,  # pyright: ignore[reportArgumentType]
        )
        assert plan.prediction is not None
        return plan.prediction.step_seconds if objective == "latency" else period_seconds(plan)

    try:
        published = seconds("edgepipe")
    except Infeasible:
        return
    assert seconds("graphpipe") <= published * (1 + 1e-9)


def test_a_device_that_does_not_help_stays_unused() -> None:
    """A message takes 10 s, and the whole model takes 2 s on one device."""
    graph = Graph(
        name="two",
        ops=(Op(name="a", output_bytes_per_sample=10.0), Op(name="b")),
        edges=(Edge(source="a", target="b", bytes_per_sample=10.0),),
    )
    kind = DeviceType(
        name="t",
        memory_bytes=100.0,
        peak_flops_per_second=1.0,
        memory_bytes_per_second=1.0,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    devices = tuple(Device(name=f"d{n}", type="t", node="n") for n in range(2))
    cluster = Cluster(name="c", device_types=(kind,), devices=devices, intra_node=link, inter_node=link)
    line = Curve(lines=((0.0, 1.0),))
    rows = tuple(
        OpCost(
            op=name,
            device_type="t",
            forward=line,
            input_gradient=line,
            weight_gradient=line,
            source="imported",
        )
        for name in "ab"
    )
    costs = CostTable(graph_fingerprint=graph.fingerprint, rows=rows)
    plan = gp.plan(graph, costs, cluster, batch_size=2, inference=True, planner="edgepipe")
    assert len(plan.stages) == 1
    with pytest.raises(InvalidInput, match="plans only inference"):
        gp.plan(graph, costs, cluster, batch_size=2, planner="edgepipe")
