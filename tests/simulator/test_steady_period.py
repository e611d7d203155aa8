"""The steady period against arithmetic by hand, and against ever longer segments."""

from dataclasses import replace
from itertools import combinations

import pytest
from builders import Part, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.cluster import Link
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.stage import WeightPolicy
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.simulator.steady_period import steady_state, timed_tasks

POLICIES: tuple[WeightPolicy, ...] = ("stash", "vertical-sync", "double-buffer")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (4, 4), (4, 6)])
def test_equal_stages_have_no_bubble(policy: WeightPolicy, stages: int, micro_batches: int) -> None:
    # Every stage works 3 seconds on a micro-batch. With a flush, m + p - 1 of them pass; without, m.
    plan = make_plan([Part()] * stages, batch_size=micro_batches)
    found = predict(with_policy(plan, policy))
    assert found.steady_seconds == pytest.approx(3 * micro_batches)
    assert found.step_seconds == pytest.approx(3 * (micro_batches + stages - 1))
    assert found.bubble_fraction == pytest.approx(0.0)
    assert found.mini_batch_seconds == found.steady_seconds
    assert predict(plan).mini_batch_seconds == found.step_seconds


def test_a_mini_batch_of_one_micro_batch_streams_as_in_pipedream() -> None:
    plan = with_policy(make_plan([Part()] * 4, batch_size=1), "stash")
    assert step_seconds(plan) == pytest.approx(3.0)
    # A double buffer lets only two micro-batches be in flight: four stages need 12 seconds there and back, and
    # stage 0 has its next micro-batch 3 seconds after its last.
    assert step_seconds(with_policy(plan, "double-buffer")) == pytest.approx(9.0)


def test_the_slowest_stage_decides() -> None:
    plan = with_policy(make_plan([Part(), Part(forward=2.0, backward=3.0), Part()], batch_size=4), "stash")
    found = steady_state(plan)
    assert found.period_seconds == pytest.approx(20.0)
    assert found.bubble_fraction == pytest.approx(1 - (12 + 20 + 12) / 60)


def test_the_update_is_part_of_the_period() -> None:
    # Each stage updates 2 bytes in a second.
    parts = [Part(parameter_bytes=2.0)] * 2
    plan = with_policy(make_plan(parts, batch_size=4, optimizer_seconds_per_parameter_byte=0.5), "stash")
    assert steady_state(plan).period_seconds == pytest.approx(4 * 3 + 1)


def test_messages_are_hidden_by_more_samples_in_flight() -> None:
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    # A message takes a second each way. Two micro-batches are in flight, whose round trip is 3 + 1 + 3 + 1 seconds.
    plan = with_policy(make_plan([Part()] * 2, [(0, 1, 1.0)], batch_size=4, link=link), "stash")
    assert steady_state(plan).period_seconds == pytest.approx(4 * (3 + 1 + 3 + 1) / 2)
    first, last = plan.stages
    assert steady_state(replace(plan, stages=(replace(first, in_flight=3), last))).period_seconds == pytest.approx(12.0)


def test_a_plan_whose_step_is_18_has_period_12() -> None:
    plan = make_plan([Part()] * 3, batch_size=4)
    assert predict(with_policy(plan, "stash")).step_seconds == 18.0
    assert step_seconds(with_policy(plan, "stash")) == 12.0


@given(plan=plans(quick=True, offloads=False), policy=st.sampled_from(POLICIES))
@settings(max_examples=5, deadline=None)
def test_long_segments_approach_the_period(plan: Plan, policy: WeightPolicy) -> None:
    stages = tuple(replace(stage, state="whole", burst=1) for stage in plan.stages)
    plan = with_policy(replace(plan, stages=stages, schedule="1f1b"), policy)
    try:
        steady = steady_state(plan)
    except InvalidInput:
        assert policy == "double-buffer"  # too few samples in flight for mixed sizes
        return
    cycle = steady.cycle or 1  # Branches of different periods, which never meet, do not repeat their common state.
    count = -(-12 // cycle) * cycle
    first = 20 if steady.cycle else 60  # The faster of such branches may end the first segments.
    some, more = (simulate(plan, mini_batches=each).step_seconds for each in (first, first + count))
    assert (more - some) / count == pytest.approx(steady.period_seconds)


def test_branches_that_never_meet_have_the_period_of_the_slower_one() -> None:
    # After 20 mini-batches the faster branch still ended the segment: the next 12 took 372.006 each.
    parts = [
        Part(micro_batch=2, forward=0.5, backward=0.5),
        Part(forward=10.0, backward=3.1, parameter_bytes=5.0, recompute="full"),
        Part(forward=0.5, backward=10.0, parameter_bytes=5.0),
        Part(micro_batch=2, forward=10.0, backward=3.0, parameter_bytes=5.0, recompute="full"),
        Part(forward=0.5, backward=0.5),
    ]
    edges = [(0, 2, 0.5), (0, 3, 0.5), (2, 3, 10.0), (1, 4, 0.5)]
    link = Link(latency_seconds=1.0, bandwidth_bytes_per_second=4.0)
    plan = make_plan(parts, edges, batch_size=16, link=link, optimizer_seconds_per_parameter_byte=0.5)
    steady = steady_state(with_policy(plan, "stash"))
    # The second stage: 16 micro-batches of 10 + 10 + 3.1 seconds, and 2.5 seconds of its optimizer.
    assert (steady.cycle, steady.period_seconds) == (0, pytest.approx(16 * 23.1 + 2.5))


@given(
    plan=plans(batch_size=16, quick=True, offloads=False),
    policy=st.sampled_from(("stash", "predict")),
    split=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_quick_times_are_those_of_the_simulation(plan: Plan, policy: WeightPolicy, split: bool) -> None:
    stages = tuple(replace(stage, state="whole", burst=1) for stage in plan.stages)
    plan = replace(plan, stages=stages, schedule="zb-h1" if split else "1f1b")
    plan = with_policy(plan, policy, "pipeoptim" if policy == "predict" else "")
    ends = {timed.end for timed in timed_tasks(plan, build_segment(plan, 4))}
    trace = simulate(plan, mini_batches=4)
    assert ends == {span.end_seconds for span in trace.spans if span.kind in ("F", "B", "I", "W", "optimizer")}


def test_a_state_that_repeats_after_five_mini_batches() -> None:
    # Cycles of up to four mini-batches were looked for. The period was a mean over half the segment: 19.1968.
    edges = [(source, target, 0.5) for source, target in combinations(range(5), 2)]
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=4.0)
    plan = make_plan([Part(forward=0.5, backward=0.5)] * 5, edges, batch_size=16, link=link)
    steady = steady_state(with_policy(plan, "stash"))
    assert (steady.cycle, steady.period_seconds) == (5, pytest.approx((19.0 + 4 * 19.25) / 5))


def test_versions_count_as_memory() -> None:
    parts = [Part(parameter_bytes=10.0, saved_bytes=1.0)] * 3
    plan = make_plan(parts, batch_size=2)
    stashed = predict(with_policy(plan, "stash"))
    versions = [stage.versions for stage in with_policy(plan, "stash").stages]
    assert versions == [2, 2, 1]
    # State is 4 bytes per byte of weights; in flight are 3, 2 and 1 samples.
    assert stashed.peak_bytes == (40 + 10 + 3, 40 + 10 + 2, 40 + 1)


def test_a_trace_shows_the_mini_batches_of_a_segment() -> None:
    plan = with_policy(make_plan([Part()] * 2, batch_size=2), "stash")
    trace = simulate(plan, mini_batches=3)
    assert trace.batch_size == 6
    assert [span.micro_batch for span in trace.spans if span.kind == "optimizer" and span.device == 0] == [0, 1, 2]
    assert {span.micro_batch for span in trace.spans if span.kind == "F"} == set(range(6))
    assert trace.step_seconds == 6 * 3 + 3
