"""Segments: drawings worked out by hand, the published version formulas, and every policy on random graphs."""

from dataclasses import replace

import pytest
from builders import Part, make_plan, plans
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from weight_policies import POLICIES

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.schedule import Compute, Reduce, Schedule, StageTask
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import delays, with_policy
from graphpipe.schedule.segments.verify_versions import verify_versions
from graphpipe.schedule.segments.weight_versions import WeightRead, weight_reads
from graphpipe.schedule.verify import verify
from graphpipe.schedule.verify_lowered import verify_lowered

WITH_FLUSH: list[tuple[WeightPolicy, Predictor]] = [("flush", ""), *POLICIES]
TWO_BRANCHES = [(0, 2, 1.0), (1, 2, 1.0)]
SKIP = [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0), (0, 3, 1.0)]


def straight(stages: int, micro_batches: int, weights: WeightPolicy, predictor: Predictor = "") -> Plan:
    return with_policy(make_plan([Part()] * stages, batch_size=micro_batches), weights, predictor)


def forwards(plan: Plan, mini_batches: int, stage: int) -> list[WeightRead]:
    reads = weight_reads(plan, build_segment(plan, mini_batches))
    count = plan.micro_batches(stage) * mini_batches
    return [reads[StageTask("F", stage, index)] for index in range(count)]


def backwards(plan: Plan, mini_batches: int, stage: int) -> list[WeightRead]:
    reads = weight_reads(plan, build_segment(plan, mini_batches))
    count = plan.micro_batches(stage) * mini_batches
    return [reads[StageTask("B", stage, index)] for index in range(count)]


def test_flush_repeats_the_schedule_with_an_update_after_each_mini_batch() -> None:
    assert str(build_segment(straight(2, 2, "flush"), 2)).splitlines()[1:] == [
        "0: F0.0 F0.1 B0.0 B0.1 U0.0 F0.2 F0.3 B0.2 B0.3 U0.1",
        "1: F1.0 B1.0 F1.1 B1.1 U1.0 F1.2 B1.2 F1.3 B1.3 U1.1",
    ]


def test_without_a_flush_forwards_go_on_across_mini_batches() -> None:
    assert str(build_segment(straight(2, 2, "stash"), 2)).splitlines()[1:] == [
        "0: F0.0 F0.1 B0.0 F0.2 B0.1 U0.0 F0.3 B0.2 B0.3 U0.1",
        "1: F1.0 B1.0 F1.1 B1.1 U1.0 F1.2 B1.2 F1.3 B1.3 U1.1",
    ]


def test_a_split_backward_sends_its_gradient_before_it_computes_the_weight_gradient() -> None:
    plan = replace(straight(2, 1, "stash"), schedule="zb-h1")
    # Stage 0 sends no gradient, so its backwards are whole.
    assert str(build_segment(plan, 2)).splitlines()[2] == "1: F1.0 I1.0 W1.0 U1.0 F1.1 I1.1 W1.1 U1.1"


def test_the_text_form_is_read_back() -> None:
    segment = build_segment(straight(3, 2, "stash"), 3)
    assert Schedule.parse(str(segment)) == segment
    assert (segment.mini_batches, segment.updates) == (3, True)
    synchronous = build_schedule(straight(3, 2, "flush"))
    assert (synchronous.mini_batches, synchronous.updates) == (1, False)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_pipedream_reads_the_published_versions(stages: int) -> None:
    # W_s^max(0, i - w_s) with w_s = S - 1 - s, and w_s + 1 versions; vertical sync: W^max(0, i - S + 1) everywhere.
    plan, synced = straight(stages, 1, "stash"), straight(stages, 1, "vertical-sync")
    assert [stage.versions for stage in plan.stages] == [stages - stage for stage in range(stages)]
    assert {stage.versions for stage in synced.stages} == {stages}
    for stage in range(stages):
        ahead = stages - 1 - stage
        expected = [(max(0, i - ahead), 0) for i in range(12)]
        assert forwards(plan, 12, stage) == backwards(plan, 12, stage) == expected
        expected = [(max(0, i - stages + 1), 0) for i in range(12)]
        assert forwards(synced, 12, stage) == backwards(synced, 12, stage) == expected


@pytest.mark.parametrize("micro_batches", [4, 6])
def test_pipedream_2bw_reads_the_published_versions(micro_batches: int) -> None:
    # Micro-batch i reads W^max(i // N - 1, 0) at every stage, forward and backward; two copies per stage.
    plan = straight(4, micro_batches, "double-buffer")
    assert {stage.versions for stage in plan.stages} == {2}
    for stage in range(4):
        expected = [(max(i // micro_batches - 1, 0), 0) for i in range(5 * micro_batches)]
        assert forwards(plan, 5, stage) == backwards(plan, 5, stage) == expected


def test_pipeoptim_predicts_as_many_updates_ahead_as_stages_follow() -> None:
    plan = straight(4, 1, "predict", "pipeoptim")
    assert [forwards(plan, 10, stage)[6] for stage in range(4)] == [(3, 3), (4, 2), (5, 1), (6, 0)]
    assert {backwards(plan, 10, stage)[6] for stage in range(4)} == {(6, 0)}
    assert [stage.versions for stage in plan.stages] == [2, 2, 2, 1]


def test_spectrain_predicts_the_same_weights_for_forward_and_backward() -> None:
    # Forward floor(k / 2) + N - k - 1, backward floor(k / 2), at stage k of N.
    plan = straight(5, 1, "predict", "spectrain")
    assert [forwards(plan, 12, stage)[6].ahead for stage in range(5)] == [4, 3, 3, 2, 2]
    assert [backwards(plan, 12, stage)[6].ahead for stage in range(5)] == [0, 0, 1, 1, 2]
    # No prediction reaches beyond the weights that the last mini-batch updates.
    assert [backwards(plan, 12, stage)[11].ahead for stage in range(5)] == [0] * 5


def test_xpipe_predicts_once_per_mini_batch() -> None:
    plan = straight(3, 4, "predict", "xpipe")
    assert forwards(plan, 3, 0)[4:8] == [(0, 1)] * 4  # the update after the first mini-batch comes before F0.6
    assert forwards(replace(plan, predictor="pipeoptim"), 3, 0)[4:8] == [(0, 1), (0, 1), (1, 0), (1, 0)]


def test_horizons_on_a_graph_follow_the_longest_path() -> None:
    # Stage 0 reaches stage 3 directly, and over 1 and 2. The longest path counts.
    plan = with_policy(make_plan([Part()] * 4, SKIP, batch_size=1), "predict", "pipeoptim")
    assert [forwards(plan, 10, stage)[6].ahead for stage in range(4)] == [3, 2, 1, 0]
    # Two branches are equally deep, so both predict one update.
    plan = with_policy(make_plan([Part()] * 3, TWO_BRANCHES, batch_size=1), "predict", "pipeoptim")
    assert [forwards(plan, 10, stage)[6].ahead for stage in range(3)] == [1, 1, 0]


def test_more_micro_batches_mean_fewer_versions() -> None:
    # Eight stages: seven micro-batches ahead.
    assert [straight(8, m, "stash").stages[0].versions for m in (1, 2, 4, 7, 16)] == [8, 5, 3, 2, 2]
    assert delays(straight(8, 2, "stash")) == (4, 3, 3, 2, 2, 1, 1, 0)
    assert delays(straight(8, 2, "vertical-sync")) == (4,) * 8
    assert delays(straight(8, 2, "double-buffer")) == (1,) * 8
    assert delays(straight(8, 2, "flush")) == (0,) * 8


def test_one_mini_batch_is_synchronous_under_every_policy() -> None:
    for policy in WITH_FLUSH:
        plan = straight(4, 2, *policy)
        assert set(weight_reads(plan, build_segment(plan, 1)).values()) == {(0, 0)}


def test_replicas_sum_their_gradients_before_each_update() -> None:
    plan = with_policy(make_plan([Part(micro_batch=2, degree=2), Part()], batch_size=4), "stash")
    lowered = lower(plan, build_segment(plan, 2))
    listed = [action for action in lowered.devices[0] if isinstance(action, Reduce | Compute)]
    shown = [str(it.task) if isinstance(it, Compute) else f"R{it.mini_batch}" for it in listed]
    assert shown == ["F0.0", "F0.1", "B0.0", "F0.2", "B0.1", "R0", "U0.0", "F0.3", "B0.2", "B0.3", "R1", "U0.1"]


@given(
    plan=plans(schedules=("1f1b", "kfkb", "zb-h1")), policy=st.sampled_from(WITH_FLUSH), mini_batches=st.integers(1, 4)
)
@settings(max_examples=75, deadline=None)
def test_every_policy_on_random_graphs(plan: Plan, policy: tuple[WeightPolicy, Predictor], mini_batches: int) -> None:
    plan = with_policy(plan, *policy)
    try:
        segment = build_segment(plan, mini_batches)
    except InvalidInput as error:
        # Bursts and mixed sizes can need more samples in flight than two versions allow.
        assert (plan.weights, "wait for each other forever" in error.what) == ("double-buffer", True)  # noqa: PT017
        assume(False)
        raise
    verify_lowered(plan, segment, lower(plan, segment))
    versions = {read.version for read in weight_reads(plan, segment).values()}
    assert 0 in versions
    assert max(versions) < mini_batches


@pytest.mark.parametrize("policy", [each for each in WITH_FLUSH if each[0] != "flush"])
def test_planned_versions_are_needed(policy: tuple[WeightPolicy, Predictor]) -> None:
    plan = straight(5, 2, *policy)
    for number, stage in enumerate(plan.stages):
        if stage.versions > 1:
            fewer = (*plan.stages[:number], replace(stage, versions=stage.versions - 1), *plan.stages[number + 1 :])
            with pytest.raises(InvalidInput, match=f"holds {stage.versions} versions"):
                build_segment(replace(plan, stages=fewer), 6)


def test_the_verifier_finds_wrong_reads() -> None:
    for policy in WITH_FLUSH:
        plan = straight(4, 2, *policy)
        segment = build_segment(plan, 4)
        reads = weight_reads(plan, segment)
        for task, (version, ahead) in reads.items():
            if task.kind in ("F", "B") and task.micro_batch in (3, 7):
                for wrong in ((version - 1, ahead), (version + 1, ahead), (version, ahead + 1)):
                    with pytest.raises((AssertionError, InvalidInput)):
                        verify_versions(plan, segment, {**reads, task: wrong})


def test_updates_in_wrong_places_are_refused() -> None:
    plan = straight(2, 2, "stash")
    text = str(build_segment(plan, 2))
    for right, wrong, what in (
        ("B0.1 U0.0 F0.3", "U0.0 B0.1 F0.3", "U0.0 does not come between"),
        ("U0.0 F0.3 B0.2", "F0.3 B0.2 U0.0", "B0.2 comes before U0.0"),
        (" U0.0", "", "does not list U0.0"),
        (" U0.1", " U0.1 U0.1", "lists U0.1 2 times"),
    ):
        assert right in text
        with pytest.raises(InvalidInput, match=what):
            verify(plan, Schedule.parse(text.replace(right, wrong)))


def test_a_schedule_without_an_endless_form_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(InvalidInput, match=r"'gpipe' cannot go on without a flush.*1f1b, kfkb, zb-h1"):
        build_segment(replace(straight(2, 2, "stash"), schedule="gpipe"), 2)
    with pytest.raises(InvalidInput, match="mini_batches"):
        build_segment(straight(2, 2, "stash"), 0)
