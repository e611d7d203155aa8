"""Between the first forward and the last backward of a step, the host never waits for the device."""

from collections.abc import Generator
from typing import Any

import pytest
import run_shared
import torch
from fake_device import FakeKind
from host_waits import host_waits
from run_chain import IN_A_V, INTERLEAVED, chain_batch, chain_pipeline
from run_models import fan_batch
from run_scenarios import build
from run_versions import batch_of, pipeline_under
from weight_policies import POLICIES

from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.run import Pipeline
from graphpipe.run.stage import edge_values, stage_replica_run
from graphpipe.run.worker.resolved_schedule import ResolvedSchedule
from graphpipe.run.worker.step_run import StepRun
from graphpipe.schedule.schedulers.registry import SCHEDULERS


@pytest.fixture
def third_run(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Let a test fail if the host waits inside the third run.

    The loss is checked in steps 1, 2, 4, 8 and so on, and reading it waits.
    """
    for module in (edge_values, stage_replica_run):
        monkeypatch.setattr(module, "kind_of", lambda _: FakeKind("cpu"))
    found: list[list[str]] = []
    run = StepRun.run

    def watched(step: Any, schedule: ResolvedSchedule) -> None:
        with host_waits() as here:
            run(step, schedule)
        found.append(here)

    monkeypatch.setattr(StepRun, "run", watched)
    yield
    assert not found[2]


def test_a_read_of_the_device_is_seen() -> None:
    with host_waits() as found:
        (torch.ones(2).sum() > 1).item()
        torch.equal(torch.ones(2), torch.ones(2))
        torch.ones(2).nonzero()
    assert {wait.partition(" ")[0] for wait in found} >= {"item", "equal", "nonzero"}


@pytest.mark.parametrize(
    ("cut", "options"),
    [
        ("four", {"clip_norm": 0.1}),
        ("mixed", {"schedule": "gpipe"}),
        ("pair", {}),
        ("replicas", {"check_finite": False}),
        ("whole", {"head": "contrast"}),
    ],
)
@pytest.mark.usefixtures("third_run")
def test_the_host_does_not_wait_inside_a_step(cut: str, options: dict[str, Any]) -> None:
    pipeline, _ = build(cut, dropout=0.1, **options)
    steps(pipeline, fan_batch)


@pytest.mark.parametrize("schedule", [name for name, it in SCHEDULERS.all().items() if it.trains])
@pytest.mark.usefixtures("third_run")
def test_no_schedule_waits(schedule: str) -> None:
    pipeline, _ = chain_pipeline(IN_A_V if SCHEDULERS[schedule].in_a_v else INTERLEAVED, schedule)
    steps(pipeline, chain_batch)


@pytest.mark.parametrize(("policy", "predictor"), POLICIES)
@pytest.mark.usefixtures("third_run")
def test_no_weight_policy_waits(policy: WeightPolicy, predictor: Predictor) -> None:
    """Without a flush, the updates are among the tasks."""
    pipeline, _ = pipeline_under("replicas", policy, predictor)
    for first, length in ((0, 2), (2, 2), (4, 3)):
        pipeline.segment([batch_of(first + step) for step in range(length)])


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": {1: "full", 2: ("c",)}},
        {"offload": {0: ("a",), 1: ("b",)}},
        {"offload": {1: ("b",)}, "offload_to": {1: (0,)}},
    ],
)
@pytest.mark.usefixtures("third_run")
def test_recomputation_and_offloading_do_not_wait(options: dict[str, Any]) -> None:
    pipeline, _ = chain_pipeline(INTERLEAVED, **options)
    steps(pipeline, chain_batch)


@pytest.mark.parametrize("cut", [*run_shared.CUTS])
@pytest.mark.usefixtures("third_run")
def test_tied_parameters_do_not_wait(cut: str) -> None:
    pipeline, _ = run_shared.build(cut)
    steps(pipeline, run_shared.batch)


def steps(pipeline: Pipeline, batch: Any) -> None:
    for seed in range(3):
        pipeline.step(*batch(seed=seed))
