"""Values that several later stages read: sent once to each device, and trained as in one process.

Torch's pipelines pass values between neighbours only (pytorch#127964). For attention residuals, others send all blocks
again for every virtual stage, or sum their gradients in another order (torchtitan#4312).
"""

from pathlib import Path

import pytest
import torch
from run_plans import hand_split, plan_of
from run_ranks import run_ranks, values
from run_skips import (
    CUTS,
    TWO_VALUES,
    capture_of,
    late,
    late_plan,
    skip_plan,
    train_alone,
    train_late,
    train_skips,
    train_two_values,
    two_values_plan,
)
from run_versions import batch_of, loss_fn, model_of

from graphpipe.plans import Plan
from graphpipe.plans.verify import verify
from graphpipe.run import Pipeline
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.simulator.simulate import simulate

RESIDUALS = "attention-residuals"
CASES = {
    2: [
        (RESIDUALS, "interleaved", "1f1b"),
        (RESIDUALS, "interleaved", "zb-h1"),
        (RESIDUALS, "together", "zb-h1"),
        ("unet", "interleaved", "zb-h1"),
        ("densenet", "interleaved", "1f1b"),
    ],
    4: [
        (RESIDUALS, "four", "1f1b"),
        (RESIDUALS, "four", "zb-h1"),
        (RESIDUALS, "replicated", "1f1b"),
        ("unet", "four", "zb-h1"),
    ],
}
"""(model, cut, schedule) by ranks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where captures are kept for the ranks."""
    return tmp_path_factory.mktemp("captures")


def sent_bytes(plan: Plan) -> float:
    """Return the bytes that all devices send in a simulated step."""
    return sum(span.bytes for span in simulate(plan).spans if span.kind == "send")


def devices_that_read(plan: Plan) -> int:
    """Return how many pairs there are of an operator and foreign devices that read it."""
    on = {op: stage.devices for stage in plan.stages for op in stage.ops}
    pairs = {(edge.source, on[edge.target]) for edge in plan.graph.edges}
    return sum(on[source] != reader for source, reader in pairs)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_as_one_process_and_send_what_is_predicted(ranks: int, folder: Path, tmp_path: Path) -> None:
    single = train_skips(folder, CASES[ranks])
    found = values(run_ranks(train_skips, ranks, tmp_path / "ranks", folder, CASES[ranks]))
    for at, (name, cut, schedule) in enumerate(CASES[ranks]):
        for rank in found:
            assert rank[at]["losses"] == single[at]["losses"], (cut, schedule)
            for key, weight in single[at]["state"].items():
                assert torch.equal(rank[at]["state"][key], weight), (cut, schedule, key)
        plan = skip_plan(capture_of(name, folder).graph, cut, schedule)
        assert found[0][at]["received"] == sent_bytes(plan), (cut, schedule)
        losses, state = train_alone(name)
        assert single[at]["losses"][:2] == pytest.approx(losses, rel=1e-6), (cut, schedule)
        for key, weight in state.items():
            largest = weight.abs().max().item()
            torch.testing.assert_close(single[at]["state"][key], weight, rtol=0.0, atol=1e-5 * largest, msg=key)


def test_a_value_goes_once_to_a_device_and_the_sum_of_its_gradients_back(folder: Path) -> None:
    graph = capture_of(RESIDUALS, folder).graph
    value = graph["embedding"].output_bytes_per_sample
    apart, folded = (skip_plan(graph, cut) for cut in ("four", "interleaved"))
    for plan in (apart, folded):
        verify(plan)
        # Outputs there and gradients back, one value of each sample for each operator and device that reads it.
        assert sent_bytes(plan) == 2 * plan.batch_size * value * devices_that_read(plan)
    # Stage 3 shares its device with stage 1, and finds there what stage 0 sent to stage 1.
    listed = sum(each.bytes_per_sample for each in folded.edges if (each.source - each.target) % 2)
    assert sent_bytes(folded) < 2 * folded.batch_size * listed
    assert folded.joint_edges.outputs == folded.joint_edges.gradients
    assert not apart.joint_edges.outputs


@pytest.mark.parametrize("cut", CUTS)
def test_the_verifier_finds_the_same_messages_by_itself(cut: str, folder: Path) -> None:
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        plan = skip_plan(capture_of(RESIDUALS, folder).graph, cut, schedule)
        tasks = build_schedule(plan)
        verify_lowered(plan, tasks, lower(plan, tasks))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stage_that_runs_before_the_one_its_value_came_for(schedule: str, tmp_path: Path) -> None:
    plan = late_plan(late(), schedule)
    names = [stage.name for stage in plan.stages]
    carried = {
        plan.stages[plan.edges[edge].target].name: [plan.stages[plan.edges[other].target].name for other in others]
        for edge, others in plan.joint_edges.outputs.items()
    }
    assert carried == {"early": ["late"]}
    assert not plan.joint_edges.gradients  # `late` may end its backward before or after `early`
    tasks = build_schedule(plan)
    assert names[tasks.devices[1][0].stage] == "early"
    verify_lowered(plan, tasks, lower(plan, tasks))
    single = train_late(schedule)
    for rank in values(run_ranks(train_late, 3, tmp_path, schedule)):
        assert rank["losses"] == single["losses"]
        for name, gradient in rank["gradients"].items():
            assert torch.equal(gradient, single["gradients"][name]), name


def test_readers_with_a_replica_on_the_device_of_their_source() -> None:
    """`b` and `d` read `a` on devices 0 and 1, and `a` is on device 0.

    Only device 1 sums the gradients of both before it sends them. Rows that device 0 was to send for `d` were once read
    without having been written.
    """
    model = model_of("diamond")
    lines = [([name], on, 4) for name, on in zip("abcd", ([0], [0, 1], [1], [0, 1]), strict=True)]
    inputs, targets = batch_of(0)
    plan = plan_of(model, inputs, lines, len(targets))
    assert plan.joint_edges.gradients
    loss_fn(model(**inputs), targets).backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    with Pipeline(plan, hand_split(model, plan, inputs), loss_fn) as pipeline:
        for _ in range(3):
            pipeline.step(inputs, targets)
            torch.testing.assert_close(pipeline.gradients(), expected)


def test_readers_of_different_values_of_an_operator_need_all_of_them(tmp_path: Path) -> None:
    # A stage whose operators read 24 and 48 bytes of two values was planned to receive 48 bytes of each sample.
    plans = {cut: two_values_plan(cut) for cut in TWO_VALUES}
    assert [edge.bytes_per_sample for edge in plans["one stage"].edges] == [24 + 48]
    assert [edge.bytes_per_sample for edge in plans["two stages"].edges] == [24 + 48, 24 + 48, 12 + 12]
    # Both stages need both values. Those of the later one are on its device already, and all gradients go back at once.
    assert plans["two stages"].joint_edges.outputs == plans["two stages"].joint_edges.gradients == {1: (0,)}
    single = train_two_values()
    for rank, found in enumerate(values(run_ranks(train_two_values, 2, tmp_path))):
        for cut, (loss, gradients, received) in found.items():
            verify(plans[cut])
            assert loss == single[cut][0]
            assert all(torch.equal(each, single[cut][1][name]) for name, each in gradients.items()), (cut, rank)
            assert received == sent_bytes(plans[cut]) == 8 * (24 + 48) * 2, cut
