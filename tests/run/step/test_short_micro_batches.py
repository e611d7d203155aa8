"""A mini-batch that micro-batches do not divide is trained as plain PyTorch does: 7 samples as 3 + 3 + 1."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.balance.blocks import Blocks
from graphpipe.exporters.registry import EXPORTERS
from graphpipe.graph import Graph
from graphpipe.plans.sharding import count_micro_batches
from graphpipe.simulator.predicted_step import predict
from graphpipe.simulator.simulate import simulate

pytestmark = pytest.mark.timeout(120)

StageLine = tuple[tuple[int, ...], int]
"""The devices and the micro-batch of a stage."""
PLANS: dict[str, list[StageLine]] = {
    "equal sizes": [((0,), 3), ((1,), 3), ((2,), 3)],
    "other sizes": [((0,), 3), ((1,), 2), ((2,), 4)],
    "replicas": [((0, 1), 4), ((2, 3), 4), ((0,), 3)],
    "replicas without a sample": [((0, 1, 2), 3), ((1, 2), 2), ((3,), 5)],
    "shared devices": [((0,), 3), ((1,), 3), ((0,), 3)],
    "whole mini-batch": [((0,), 3), ((1,), 3), ((2,), 7)],
}
SCHEDULES = ("1f1b", "gpipe", "kfkb", "zb-h1", "zb-auto", "interleaved")


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@cache
def graph() -> Graph:
    return gp.capture(model(), torch.randn(4, 6).double())


def plan_of(lines: Sequence[StageLine], samples: int = 7, schedule: str = "1f1b", recompute: Any = "none") -> gp.Plan:
    names, cluster = [op.name for op in graph().ops], gp.Cluster.preset("local:4")
    parts = [names[:1], names[1:2], names[2:]]
    stages = [
        gp.HandStage(ops=tuple(ops), devices=devices, micro_batch=size, recompute=recompute)
        for ops, (devices, size) in zip(parts, lines, strict=True)
    ]
    costs = gp.estimate(graph(), cluster)
    return gp.hand_plan(graph(), costs, cluster, batch_size=samples, stages=stages, schedule=schedule)


def data(samples: int = 7) -> tuple[Tensor, Tensor]:
    torch.manual_seed(samples)
    return torch.randn(samples, 6, dtype=torch.float64), torch.randint(3, (samples,))


def distance(plan: gp.Plan, loss_fn: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Tensor]) -> float:
    inputs, targets = data(plan.batch_size)
    whole = model()
    expected = plain(whole(inputs), targets)
    expected.backward()
    with gp.Pipeline(plan, model(), loss_fn, options=gp.PipelineOptions(debug=True)) as pipe:
        away = [abs(pipe.step(inputs, targets) - expected.item())]
        gradients = pipe.gradients()
    for name, parameter in whole.named_parameters():
        found = gradients[name]
        assert found is not None
        assert parameter.grad is not None
        away.append((found - parameter.grad).abs().max().item())
    return max(away)


FEW = ("other sizes", "replicas without a sample", "whole mini-batch")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in PLANS])
def test_every_schedule_gives_the_gradients_of_plain_pytorch(name: str) -> None:
    loss = nn.functional.cross_entropy
    for schedule in SCHEDULES:
        plan = plan_of(PLANS[name], schedule=schedule, recompute="full" if schedule == "kfkb" else "none")
        assert distance(plan, loss, loss) < 1e-12, schedule


def weighted(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    counted = (targets > 0).double()
    return (nn.functional.cross_entropy(output, targets, reduction="none") * counted).sum(), counted.sum()


def weighted_mean(output: Tensor, targets: Tensor) -> Tensor:
    total, weight = weighted(output, targets)
    return total / weight


def test_other_losses_count_samples_as_plain_pytorch_does() -> None:
    ignoring = nn.CrossEntropyLoss(ignore_index=0)
    for name in ("equal sizes", "replicas without a sample"):
        assert distance(plan_of(PLANS[name]), weighted, weighted_mean) < 1e-12
        assert distance(plan_of(PLANS[name]), ignoring, ignoring) < 1e-12


def test_the_simulator_counts_the_samples_of_the_short_micro_batch() -> None:
    plan = plan_of(PLANS["equal sizes"])
    whole = plan_of(PLANS["equal sizes"], 9)
    trace, longer = simulate(plan), simulate(whole)
    spans = {n: s.end_seconds - s.start_seconds for s in trace.spans if s.kind == "F" for n in [s.micro_batch]}
    assert spans[0] == pytest.approx(spans[1])
    assert spans[2] < spans[0]
    assert trace.step_seconds < longer.step_seconds
    assert predict(plan).step_seconds == trace.step_seconds
    assert [count_micro_batches(7, stage.micro_batch) for stage in plan.stages] == [3, 3, 3]


def test_a_plan_file_a_checkpoint_and_a_recorded_step_keep_it(tmp_path: Path) -> None:
    plan = plan_of(PLANS["other sizes"])
    plan.save(tmp_path / "plan.json")
    assert gp.Plan.load(tmp_path / "plan.json") == plan
    loss, optimizer = nn.functional.cross_entropy, lambda p: torch.optim.AdamW(p, lr=0.1)
    inputs, targets = data()
    whole = model()
    updates = optimizer(whole.parameters())
    piped = copy.deepcopy(whole)
    with gp.Pipeline(plan, piped, loss, optimizer, options=gp.PipelineOptions(record=True)) as pipe:
        for _ in range(3):
            updates.zero_grad()
            loss(whole(inputs), targets).backward()
            updates.step()
            pipe.step(inputs, targets)
        assert sum(span.kind == "F" and span.stage == 1 for span in pipe.trace().spans) == 4
    for one, other in zip(piped.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_what_needs_equal_micro_batches_says_so() -> None:
    plan = plan_of(PLANS["equal sizes"])
    with pytest.raises(gp.InvalidInput, match="does not divide batch 7, as segments of several mini-batches need"):
        simulate(plan, mini_batches=2)
    assert Blocks.of(plan_of(PLANS["replicas"])) == Blocks(())  # a balanced order is one of equal blocks
    options = gp.PipelineOptions(weights="stash")
    with pytest.raises(gp.InvalidInput, match="as the weight policy 'stash' needs"):
        gp.Pipeline(plan, model(), nn.functional.cross_entropy, torch.optim.SGD, options=options)
    with pytest.raises(gp.InvalidInput, match="micro-batches of 3 leave 1 of 7 samples for the last one, and the"):
        EXPORTERS["torch-pipelining"].write(plan)


def test_planners_try_such_sizes_for_a_prime_mini_batch_and_take_one_that_is_asked_for() -> None:
    cluster = gp.Cluster.preset("local:2")
    costs = gp.estimate(graph(), cluster)
    for planner in ("graphpipe", "spp", "gpipe"):
        plan = gp.plan(graph(), costs, cluster, batch_size=8, planner=planner, micro_batch=3)
        assert {stage.micro_batch for stage in plan.stages} == {3}
    for samples in (7, 17):
        assert gp.plan(graph(), costs, cluster, batch_size=samples).batch_size == samples
