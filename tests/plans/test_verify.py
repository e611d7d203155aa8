"""The verifier refuses every kind of unsound plan, and names the flaw."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from baseline_oracles import busy_problem
from builders import plans
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import KIND, cluster, table, towers

from graphpipe.cluster import HostMemory
from graphpipe.costs import Curve, OpCost, Recompute, State, Temporaries, declare_loads
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Edge, Graph, Op, Shared, Work
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import planner_names
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planning.plan import plan as find_plan
from graphpipe.plans.device_memory import memory_shortfall, needed_bytes, spare_bytes
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import BackendRegion, StageEdge
from graphpipe.plans.verify import verify
from graphpipe.simulator.simulate import simulate


def sound() -> Plan:
    hand = HandPlan(
        stages=(
            HandStage(name="a", ops=("b0.*",), devices=(0, 1), micro_batch=2),
            HandStage(name="b", ops=("b1.0",), devices=(2,), micro_batch=2),
            HandStage(name="c", ops=("b1.1", "join"), devices=(3,), micro_batch=4),
        )
    )
    return plan_by_hand(towers([2, 2], 4, 8), hand)


def stage(plan: Plan, at: int, **changes: object) -> Plan:
    stages = list(plan.stages)
    stages[at] = replace(stages[at], **changes)
    return replace(plan, stages=tuple(stages))


def edges(plan: Plan, *listed: tuple[int, int, float]) -> Plan:
    return replace(plan, edges=tuple(StageEdge(source=s, target=t, bytes_per_sample=b) for s, t, b in listed))


CASES: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "no stages": (lambda p: replace(p, stages=()), "no stages"),
    "same name": (lambda p: stage(p, 0, name="b"), "2 stages are named 'b'"),
    "empty": (lambda p: stage(p, 0, ops=()), "stage 'a': has no operators"),
    "unknown op": (lambda p: stage(p, 0, ops=("nope",)), "'nope', which is not an operator"),
    "twice": (lambda p: stage(p, 1, ops=("b1.0", "b0.0")), "operator 'b0.0' is also in stage 'a'"),
    "left out": (lambda p: stage(p, 0, ops=("b0.0",)), "1 operators are not in any stage, first 'b0.1'"),
    "micro-batch": (lambda p: stage(p, 1, micro_batch=16), "micro_batch is 16, must be 1 to batch 8"),
    "short micro-batch": (
        lambda p: stage(replace(p, weights="stash"), 1, micro_batch=3),
        "micro_batch 3 does not divide batch 8, as the weight policy 'stash' needs",
    ),
    "degree": (lambda p: stage(p, 0, micro_batch=1, in_flight=4), "micro_batch 1 does not split over 2 devices"),
    "burst": (lambda p: stage(p, 0, burst=0), "burst is 0"),
    "in flight low": (lambda p: stage(p, 2, in_flight=2), "in_flight is 2, must be a multiple of micro_batch 4"),
    "in flight high": (lambda p: stage(p, 2, in_flight=12), "in_flight is 12"),
    "no device": (lambda p: stage(p, 0, devices=()), "stage 'a': has no device"),
    "device twice": (lambda p: stage(p, 0, devices=(0, 0)), "lists a device twice"),
    "unknown device": (lambda p: stage(p, 1, devices=(4,)), "uses device 4, but cluster 'test' has devices 0 to 3"),
    "edge missing": (lambda p: edges(p, (0, 2, 1e3)), "stage edge 'b' -> 'c' is missing: operator 'b1.0' feeds"),
    "edge back": (lambda p: edges(p, (2, 0, 1e3)), "goes backwards"),
    "edge twice": (lambda p: edges(p, (0, 2, 1e3), (0, 2, 1e3), (1, 2, 1e3)), "is listed 2 times"),
    "edge bytes": (lambda p: edges(p, (0, 2, 7.0), (1, 2, 1e3)), "has 7 bytes per sample, but its operators send 1000"),
    "recompute nothing": (lambda p: stage(p, 0, recompute=()), "stage 'a', recompute: lists nothing"),
    "recompute elsewhere": (
        lambda p: stage(p, 0, recompute=("b1.0",)),
        "'b1.0' is not an operator of the stage, nor a",
    ),
    "recompute twice": (lambda p: stage(p, 0, recompute=("b0", "b0.1")), "operator 'b0.1' is in both 'b0' and 'b0.1'"),
    "edge unknown": (lambda p: edges(p, (0, 9, 0.0)), "names stage 9 of 3"),
    "edge one too far": (lambda p: edges(p, (0, 3, 0.0)), "names stage 3 of 3"),
    "edge from nowhere": (lambda p: edges(p, (-1, 1, 0.0)), "names stage -1 of 3"),
    "edge to itself": (lambda p: edges(p, (1, 1, 0.0)), "stage edge 'b' -> 'b' goes backwards"),
    "edge bytes of nothing": (lambda p: edges(p, (0, 1, 1.0), (0, 2, 1e3), (1, 2, 1e3)), "has 1 bytes per sample, but"),
    "left out two": (lambda p: stage(p, 2, ops=("join",)), "1 operators are not in any stage, first 'b1.1'"),
    "mini-batch": (lambda p: replace(p, batch_size=0), "batch_size: is 0, must be at least 1"),
    "no micro-batch": (lambda p: stage(p, 1, micro_batch=0), "stage 'b': micro_batch is 0, must be 1 to batch 8"),
    "negative micro-batch": (lambda p: stage(p, 1, micro_batch=-1, in_flight=-1), "micro_batch is -1, must be 1 to"),
    "in flight no multiple": (
        lambda p: stage(p, 2, in_flight=6),
        "in_flight is 6, must be a multiple of micro_batch 4 up to batch 8",
    ),
    "in flight none": (lambda p: stage(p, 2, in_flight=0), "in_flight is 0, must be"),
    "in flight high with a double buffer": (
        lambda p: replace(stage(p, 2, in_flight=16), weights="double-buffer"),
        "in_flight is 16, must be a multiple of micro_batch 4 up to 12",
    ),
    "device before the first": (lambda p: stage(p, 1, devices=(-1,)), "uses device -1, but cluster"),
    "predictor missing": (
        lambda p: replace(p, weights="predict"),
        "predictor: is missing, but the weight policy is 'predict'",
    ),
    "predictor unused": (
        lambda p: replace(p, weights="stash", predictor="xpipe"),
        "predictor: is 'xpipe', but the weight policy is 'stash'",
    ),
    "no version": (lambda p: stage(p, 1, versions=0), "stage 'b': versions is 0, must be at least 1"),
    "versions unused": (lambda p: stage(p, 1, versions=2), "stage 'b': keeps 2 versions of its weights, but"),
    "shards weights in use": (
        lambda p: replace(stage(p, 0, state="optimizer"), weights="stash"),
        "stage 'a': shards its state, and the weight policy is 'stash'",
    ),
    "recomputes with other weights": (
        lambda p: replace(stage(p, 1, recompute="full"), weights="moving-average"),
        "stage 'b': recomputes in its backward, which reads other weights than its forward under 'moving-average'",
    ),
    "region of another stage": (
        lambda p: stage(p, 1, regions=(region("b1.0"), region("join"))),
        "stage 'b': a region has 'join', which is not in the stage",
    ),
    "operator without a region": (
        lambda p: stage(p, 0, regions=(region("b0.1"),)),
        "operator 'b0.0' is in 0 regions, must be in one",
    ),
    "operator in two regions": (
        lambda p: stage(p, 0, regions=(region("b0.0", "b0.1"), region("b0.1"))),
        "operator 'b0.1' is in 2 regions, must be in one",
    ),
    "offload elsewhere": (lambda p: stage(p, 0, offload=("b1.0",)), "stage 'a', offload: 'b1.0' is not an operator"),
    "offload misspelled": (lambda p: stage(p, 0, offload=("b0.2",)), "Did you mean 'b0.1'"),
    "recompute misspelled": (lambda p: stage(p, 0, recompute=("b0.2",)), "Did you mean 'b0.1'"),
    "too few neighbours": (
        lambda p: stage(p, 0, offload=("b0.1",), offload_to=(2,)),
        "stage 'a', offload_to: names 1 neighbours, but the stage has 2 devices",
    ),
    "offload twice": (
        lambda p: stage(p, 0, offload=("b0", "b0.1")),
        "operator 'b0.1' is in both 'b0' and 'b0.1' (offload)",
    ),
    "offload and recompute": (
        lambda p: stage(p, 0, offload=("b0.1",), recompute=("b0",)),
        "operator 'b0.1' is in both 'b0.1' and 'b0' (offload and recompute)",
    ),
}


def region(*ops: str) -> BackendRegion:
    return BackendRegion(backend="eager", ops=ops)


@pytest.mark.parametrize("case", CASES)
def test_each_flaw_is_named(case: str) -> None:
    change, message = CASES[case]
    with pytest.raises(InvalidInput, match=re.escape(message)):
        verify(change(sound()))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: stage(p, 2, in_flight=8),
        lambda p: replace(stage(p, 2, in_flight=12), weights="double-buffer"),
        lambda p: replace(stage(p, 2, in_flight=400), weights="stash"),
        lambda p: replace(stage(p, 0, versions=3), weights="stash"),
        lambda p: replace(stage(p, 1, state="optimizer"), weights="stash"),  # a single replica shards nothing
        lambda p: replace(stage(p, 1, recompute="full"), weights="stash"),
        lambda p: replace(p, weights="predict", predictor="xpipe"),
        lambda p: stage(p, 0, regions=(region("b0.1"), region("b0.0"))),
        lambda p: stage(p, 0, offload=("b0.1",), recompute=("b0.0",)),
    ],
)
def test_what_is_just_allowed_passes(change: Callable[[Plan], Plan]) -> None:
    verify(change(sound()))


def test_regions_that_feed_each_other_cannot_run_one_after_the_other() -> None:
    plan = plan_by_hand(looped(), HandPlan(stages=(HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2),)))
    verify(stage(plan, 0, regions=(region("x.0", "y.0"), region("x.1", "y.1"))))
    with pytest.raises(InvalidInput, match="'all': cannot run on its backends piece by piece, because the pieces feed"):
        verify(stage(plan, 0, regions=(region("x.0", "x.1"), region("y.0", "y.1"))))


def test_stages_that_update_at_different_times_share_no_trained_parameter() -> None:
    plan = plan_by_hand(tied_chain(1e6), APART)
    message = "weights: stages 'first' and 'second' share parameter 'weight', but under the weight policy 'stash'"
    with pytest.raises(InvalidInput, match=message):
        verify(replace(plan, weights="stash"))
    together = HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2)
    verify(replace(plan_by_hand(tied_chain(1e6), HandPlan(stages=(together,))), weights="stash"))
    frozen = replace(plan.graph, shared=tuple(replace(each, trainable=False) for each in plan.graph.shared))
    costs = replace(plan.costs, graph_fingerprint=frozen.fingerprint)
    verify(replace(plan, graph=frozen, costs=costs, weights="stash"))


def test_a_sound_plan_passes_and_ordering_edges_of_no_bytes_are_allowed() -> None:
    plan = sound()
    verify(plan)
    verify(edges(plan, (0, 1, 0.0), (0, 2, 1e3), (1, 2, 1e3)))


def test_a_stage_that_a_path_leaves_and_enters_again_is_not_convex() -> None:
    problem = towers([3], 2, 4)
    with pytest.raises(InvalidInput, match="stages form a cycle"):
        plan_by_hand(
            problem,
            HandPlan(
                stages=(
                    HandStage(name="ends", ops=("b0.0", "b0.2", "join"), devices=(0,), micro_batch=2),
                    HandStage(name="middle", ops=("b0.1",), devices=(1,), micro_batch=2),
                )
            ),
        )
    stages = (
        HandStage(name="first", ops=("b0.0", "b0.1"), devices=(0,), micro_batch=2),
        HandStage(name="second", ops=("b0.2", "join"), devices=(1,), micro_batch=2),
    )
    plan = plan_by_hand(problem, HandPlan(stages=stages))
    crossed = stage(stage(plan, 0, ops=("b0.0", "b0.2")), 1, ops=("b0.1", "join"))
    with pytest.raises(
        InvalidInput, match=r"'first': is not convex: a path leaves it, passes 'b0\.1' of stage 'second'"
    ):
        verify(crossed)


def test_memory_is_summed_over_the_stages_of_a_device() -> None:
    # A stage: 2 layers x (4 MB of state + 2 x 1 MB in flight) each, and the join's 2 x (1 MB + 1 kB received).
    one_device = [
        HandStage(name="a", ops=("b0.*",), devices=(0,), micro_batch=2, in_flight=2),
        HandStage(name="c", ops=("join",), devices=(0,), micro_batch=2, in_flight=2),
    ]
    need = 2 * (4e6 + 2e6) + 2 * (1e6 + 1e3)
    plan_by_hand(towers([2], 1, 4, memory_bytes=need), HandPlan(stages=tuple(one_device)))
    message = r"stage 'a' and 'c' needs 13\.4 MiB on device 'd0', which has 13\.4 MiB: 1000 B \(1000 bytes\) short"
    with pytest.raises(Infeasible, match=message):
        plan_by_hand(towers([2], 1, 4, memory_bytes=need - 1000), HandPlan(stages=tuple(one_device)))


def test_sums_that_differ_by_a_rounding_fit() -> None:
    whole = HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2, in_flight=2)
    plan = plan_by_hand(towers([2], 1, 4), HandPlan(stages=(whole,)))
    need = needed_bytes(plan)[0]

    def with_memory(count: float) -> Plan:
        return replace(plan, cluster=replace(plan.cluster, device_types=(replace(KIND, memory_bytes=count),)))

    verify(with_memory(need * (1 - 5e-7)))
    with pytest.raises(Infeasible):
        verify(with_memory(need * (1 - 2e-6)))


def tied_chain(count: float, memory_bytes: float = 16e9, *, listed: bool = True) -> Problem:
    """Two layers and a join that hold a parameter of `count` bytes, beside 1 MB of their own each."""
    problem = towers([2], 2, 4, memory_bytes=memory_bytes)
    ops = tuple(
        replace(op, parameters=("weight",), parameter_bytes=op.parameter_bytes + count) for op in problem.graph.ops
    )
    graph = replace(problem.graph, ops=ops, shared=(Shared(name="weight", bytes=count),) if listed else ())
    return replace(problem, graph=graph, costs=replace(problem.costs, graph_fingerprint=graph.fingerprint))


APART = HandPlan(
    stages=(
        HandStage(name="first", ops=("b0.0",), devices=(0,), micro_batch=2, in_flight=2),
        HandStage(name="second", ops=("b0.1", "join"), devices=(1,), micro_batch=2, in_flight=2),
    )
)


def test_stages_may_share_a_parameter_that_the_graph_lists() -> None:
    plan = plan_by_hand(tied_chain(1e6), APART)
    assert [(each.stages, each.devices, each.bytes) for each in plan.tied_gradients] == [((0, 1), (0, 1), 1e6)]
    with pytest.raises(InvalidInput, match="parameter 'weight' is used in stages 'first' and 'second', and the graph"):
        plan_by_hand(tied_chain(1e6, listed=False), APART)


def test_memory_counts_a_shared_parameter_once_in_a_stage_and_at_every_stage() -> None:
    # The second stage: state of a layer, of the join (no weights of its own) and of what both share, 4 bytes a byte;
    # in flight 2 x (1 MB of the layer + 1 MB of the join + 1 kB received).
    own = [op.parameter_bytes for op in towers([2], 2, 4).graph.ops if op.name in ("b0.1", "join")]
    need = 4 * (sum(own) + 3e6) + 2 * (2e6 + 1e3)
    plan_by_hand(tied_chain(3e6, memory_bytes=need), APART)
    with pytest.raises(Infeasible, match=r"stage 'second' needs .* \(1000 bytes\) short"):
        plan_by_hand(tied_chain(3e6, memory_bytes=need - 1000), APART)


@pytest.mark.parametrize("name", sorted(planner_names(trains=True)))
def test_planners_may_split_operators_that_share_a_parameter(name: str) -> None:
    # The three operators do not fit on one device, so every planner puts the parameter into several stages.
    problem = replace(tied_chain(1e6), cluster=towers([2], 4, 4, memory_bytes=11e6).cluster)
    plan = find_plan(problem.graph, problem.costs, problem.cluster, batch_size=4, planner=name)
    (exchange,) = plan.tied_gradients
    assert len(exchange.stages) > 1
    assert plan.prediction is not None
    assert plan.prediction.step_seconds == pytest.approx(simulate(plan).step_seconds)


def test_whole_batch_operators_get_the_mini_batch_on_one_device() -> None:
    problem = towers([1, 1], 2, 4, whole_batch=True)
    with pytest.raises(
        InvalidInput, match="needs the whole mini-batch of 4 on one device, but the stage has micro_batch 2"
    ):
        plan_by_hand(problem, HandPlan(stages=(HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2),)))
    with pytest.raises(InvalidInput, match="on one device, but the stage has micro_batch 4 on 2"):
        plan_by_hand(problem, HandPlan(stages=(HandStage(name="all", ops=("*",), devices=(0, 1), micro_batch=4),)))
    plan_by_hand(problem, HandPlan(stages=(HandStage(name="all", ops=("*",), devices=(0,), micro_batch=4),)))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=20, deadline=None)
def test_verifier_and_cost_model_count_the_same_without_training(seed: int) -> None:
    rng = random.Random(seed)
    problem = _with_shared(busy_problem(seed), rng)
    sent = {op.name: 0.0 for op in problem.graph.ops}
    for edge in problem.graph.edges:
        sent[edge.source] = max(sent[edge.source], edge.bytes_per_sample)
    ops = tuple(replace(op, output_bytes_per_sample=sent[op.name] + rng.choice([0.0, 1e6])) for op in problem.graph.ops)
    graph = replace(problem.graph, ops=ops)
    rows = _with_temporaries(problem.costs.rows, rng)
    costs = replace(problem.costs, graph_fingerprint=graph.fingerprint, rows=rows)
    problem = replace(problem, graph=graph, costs=costs)
    names = problem.graph.order
    cut = rng.randint(0, len(names))
    devices = tuple(range(rng.choice([1, 2])))
    stages = [HandStage(ops=ops, devices=devices, micro_batch=4) for ops in (names[:cut], names[cut:]) if ops]
    plan = plan_by_hand(problem, HandPlan(stages=tuple(stages)))
    plan = replace(plan, trains=False, schedule="forward-only", prediction=None)
    assume(needed_bytes(plan)[0] > 1)
    check_that_both_count_the_same(plan)


def looped() -> Problem:
    """One chain: x.0, y.0, x.1, y.1."""
    names = ("x.0", "y.0", "x.1", "y.1")
    ops = tuple(Op(name=name, work=Work(saved_bytes_per_sample=10.0)) for name in names)
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=3.0) for a, b in pairwise(names))
    graph = Graph(name="looped", ops=ops, edges=edges)
    return Problem(graph, table(graph, dict.fromkeys(names, (0.0, 1e-3))), cluster(2), 4)


def test_submodules_that_feed_each_other_cannot_be_computed_again_one_by_one() -> None:
    def plan(*recompute: str) -> Plan:
        whole = HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2, recompute=recompute)
        return plan_by_hand(looped(), HandPlan(stages=(whole,)))

    plan("x.0", "x.1")
    with pytest.raises(InvalidInput, match=r"'all', recompute: cannot be computed again .* each other: 'x' -> 'y.0'"):
        plan("x")
    with pytest.raises(InvalidInput, match=r"feed each other: '[xy]' -> '[xy]' -> '[xy]'"):
        plan("x", "y")


def test_a_pattern_makes_each_operator_its_own_region() -> None:
    stages = (HandStage(name="all", ops=("*",), devices=(0,), micro_batch=2, recompute=("x.*", "y.1")),)
    assert plan_by_hand(looped(), HandPlan(stages=stages)).stages[0].recompute == ("x.0", "x.1", "y.1")
    none = (replace(stages[0], recompute=("z.*",)),)
    with pytest.raises(InvalidInput, match=r"stage 'all', recompute: 'z\.\*' matches no operator of the stage"):
        plan_by_hand(looped(), HandPlan(stages=none))


@pytest.mark.parametrize(
    ("recompute", "need"),
    [
        # 4 samples in flight, 2 of them in a backward. The output of y.1 is not read.
        ("none", 4 * 40),
        ("full", 4 * 0 + 2 * 40),
        (("x.0",), 4 * (3 + 30) + 2 * 10),  # y.0 holds the 3 bytes that it reads
        (("x.0", "y.0"), 4 * (3 + 3 + 20) + 2 * 10),
        (("x.0", "x.1", "y.0", "y.1"), 4 * (3 + 3 + 3) + 2 * 10),
    ],
)
def test_memory_under_recomputation_by_hand(recompute: Recompute, need: float) -> None:
    problem = looped()

    def plan(memory_bytes: float) -> Plan:
        stages = (HandStage(ops=("*",), devices=(0,), micro_batch=2, in_flight=4, recompute=recompute),)
        tight = replace(problem, cluster=cluster(2, memory_bytes=memory_bytes))
        return plan_by_hand(tight, HandPlan(stages=stages))

    assert memory_shortfall(plan(need)) == 0.0  # the planners' own count
    with pytest.raises(Infeasible, match=r"\(1 bytes\) short"):
        plan(need - 1)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_verifier_and_cost_model_count_the_same_under_any_recomputation(seed: int) -> None:
    rng = random.Random(seed)
    problem = busy_problem(seed)
    if rng.random() < 0.7:
        problem = replace(problem, costs=replace(problem.costs, rows=_with_temporaries(problem.costs.rows, rng)))
    if rng.random() < 0.5:
        loads = declare_loads(problem.graph, {rng.choice(problem.graph.order): {0: 0.5, rng.choice([0.5, 2, 4]): 0.5}})
        # A load that no sample has does not count.
        loads = tuple(replace(each, loads=(*each.loads, 99.0), shares=(*each.shares, 0.0)) for each in loads)
        problem = replace(problem, costs=replace(problem.costs, loads=loads))
    names = problem.graph.order
    cut = rng.randint(0, len(names))
    stages = [
        HandStage(
            ops=ops,
            devices=(0,),
            micro_batch=2,
            recompute=rng.choice(["none", "full", tuple(name for name in ops if rng.random() < 0.5) or "none"]),
        )
        for ops in (names[:cut], names[cut:])
        if ops
    ]
    check_that_both_count_the_same(plan_by_hand(problem, HandPlan(stages=tuple(stages))))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_verifier_and_cost_model_count_the_same_under_any_offloading(seed: int) -> None:
    rng = random.Random(seed)
    problem = busy_problem(seed)
    names = problem.graph.order
    once = tuple(
        replace(op, work=replace(op.work, saved_bytes_per_forward=rng.choice([0.0, 0.0, 1e6 + 1])))
        for op in problem.graph.ops
    )
    graph = replace(problem.graph, ops=once)
    rows = _with_temporaries(problem.costs.rows, rng)
    costs = replace(problem.costs, graph_fingerprint=graph.fingerprint, rows=rows)
    problem = replace(problem, graph=graph, costs=costs)
    cut = rng.randint(0, len(names))
    groups = [ops for ops in (names[:cut], names[cut:]) if ops]
    recomputed = [tuple(name for name in ops if rng.random() < 0.3) for ops in groups]
    plan = plan_by_hand(
        problem,
        HandPlan(
            stages=tuple(
                HandStage(ops=ops, devices=(0,), micro_batch=2, recompute=some or "none")
                for ops, some in zip(groups, recomputed, strict=True)
            )
        ),
    )
    stages = tuple(
        replace(
            each,
            offload=tuple(name for name in each.ops if name not in some and rng.random() < 0.5),
            in_flight=2 * rng.randint(1, plan.batch_size // 2),
        )
        for each, some in zip(plan.stages, recomputed, strict=True)
    )
    roomy = replace(plan.cluster, host_memory=(HostMemory(node=plan.cluster.devices[0].node, bytes=1e15),))
    check_that_both_count_the_same(replace(plan, stages=stages, cluster=roomy))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_verifier_and_cost_model_count_the_same_under_any_sharding(seed: int) -> None:
    rng = random.Random(seed)
    problem = _with_shared(busy_problem(seed), rng)
    costs = replace(problem.costs, state_bytes_per_parameter_byte=rng.choice([1.0, 2.0, 3.0, 4.0]))
    problem = replace(problem, costs=costs)
    names = problem.graph.order
    cut = rng.randint(0, len(names))
    stages = [
        HandStage(
            ops=ops,
            devices=tuple(range(rng.choice([1, 2, 4]))),
            micro_batch=4,
            state=rng.choice(["whole", "optimizer", "all", "layers"]),
        )
        for ops in (names[:cut], names[cut:])
        if ops
    ]
    check_that_both_count_the_same(plan_by_hand(problem, HandPlan(stages=tuple(stages))))


@pytest.mark.parametrize("versions", [2, 3, 4])
def test_every_older_version_of_the_weights_is_held_too(versions: int) -> None:
    plan = replace(stage(sound(), 0, versions=versions), weights="stash")
    one = needed_bytes(replace(stage(sound(), 0), weights="stash"))[0]
    weights = sum(op.parameter_bytes for op in plan.graph.ops if op.name in plan.stages[0].ops)
    assert needed_bytes(plan)[0] == pytest.approx(one + (versions - 1) * weights)
    check_that_both_count_the_same(plan)


def check_that_both_count_the_same(plan: Plan) -> None:
    """Let the verifier say how much memory is missing on a device of one byte, and compare with the cost model."""
    kind = replace(KIND, memory_bytes=1.0)
    with pytest.raises(Infeasible) as error:
        verify(replace(plan, cluster=replace(plan.cluster, device_types=(kind,))))
    assert f"({needed_bytes(plan)[0] - 1:.0f} bytes) short" in str(error.value)


def _with_shared(problem: Problem, rng: random.Random) -> Problem:
    """Return the problem with frozen operators, and with two parameters that random operators share."""
    shared = tuple(Shared(name=f"w{number}", bytes=rng.choice([1e5, 3e7])) for number in range(2))
    ops = [replace(op, trainable=rng.random() < 0.8) for op in problem.graph.ops]
    for each in shared:
        for at, op in enumerate(ops):
            if op.trainable and rng.random() < 0.5:
                size = op.parameter_bytes + each.bytes
                ops[at] = replace(op, parameters=(*op.parameters, each.name), parameter_bytes=size)
    held = tuple(each for each in shared if sum(each.name in op.parameters for op in ops) > 1)
    graph = replace(problem.graph, ops=tuple(ops), shared=held)
    return replace(problem, graph=graph, costs=replace(problem.costs, graph_fingerprint=graph.fingerprint))


@pytest.mark.parametrize(
    ("state", "need"),
    [
        ("whole", 4 * 18.0),
        # The next largest goes to the replica with the fewest bytes: 5, then 4 + 3, then 3 + 3.
        ("optimizer", 2 * 18.0 + 2 * 7.0),
        # The gathered weights and their gradients, and a third of the weights and of the optimizer's state.
        ("all", 2 * 18.0 + (1 + 2) * 18.0 / 3),
        # A third of everything, and four times the largest operator.
        ("layers", 4 * 5.0 + (1 + 1 + 2) * 18.0 / 3),
    ],
)
def test_memory_of_sharded_state_by_hand(state: State, need: float) -> None:
    ops = tuple(Op(name=f"o{at}", parameter_bytes=count) for at, count in enumerate((3.0, 5.0, 3.0, 4.0, 3.0)))
    graph = Graph(name="five", ops=ops, edges=())
    costs = table(graph, {op.name: (0.0, 1.0) for op in ops})
    stages = (HandStage(ops=("*",), devices=(0, 1, 2), micro_batch=3, state=state),)

    def plan(memory_bytes: float) -> Plan:
        tight = Problem(graph, costs, cluster(3, memory_bytes=memory_bytes), 3)
        return plan_by_hand(tight, HandPlan(stages=stages))

    assert memory_shortfall(plan(need)) == 0.0
    with pytest.raises(Infeasible, match=r"\(1 bytes\) short"):
        plan(need - 1)


def _with_temporaries(rows: tuple[OpCost, ...], rng: random.Random) -> tuple[OpCost, ...]:
    def line() -> Curve:
        return Curve(lines=((rng.choice([0.0, 1e6]), rng.choice([0.0, 3e5])),))

    def held() -> Temporaries:
        return Temporaries(forward=line(), backward=line(), loss_bytes_per_sample=rng.choice([0.0, 2e5]))

    return tuple(replace(row, temporaries=held() if rng.random() < 0.8 else None) for row in rows)


@pytest.mark.parametrize("planner", sorted(planner_names(trains=True)))
def test_planners_leave_room_for_temporaries(planner: str) -> None:
    problem = towers([4], 4, 16, layer=(1.0, 1e-3), saved_bytes=1e6, memory_bytes=1e9)
    held = Temporaries(forward=Curve(), backward=Curve(lines=((0.0, 3e8),)))
    rows = tuple(replace(row, temporaries=held) for row in problem.costs.rows)

    def found(rows: tuple[OpCost, ...]) -> Plan:
        costs = replace(problem.costs, rows=rows)
        return find_plan(problem.graph, costs, problem.cluster, batch_size=16, planner=planner)

    # With at most three samples at once, a device has enough memory.
    assert max(stage.micro_batch / stage.degree for stage in found(problem.costs.rows).stages) > 3
    plan = found(rows)
    assert max(stage.micro_batch / stage.degree for stage in plan.stages) <= 3
    assert max(needed_bytes(plan).values()) <= 1e9


@settings(max_examples=25, deadline=None)
@given(plans())
def test_the_shortfall_is_what_the_fullest_device_lacks(found: Plan):
    """Of plans whose stages share devices or rest values on neighbours, and of others, whose devices are not listed."""
    assert memory_shortfall(found) == -min(spare_bytes(found).values())
