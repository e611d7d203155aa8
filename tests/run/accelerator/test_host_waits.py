"""Between the first forward and the last backward of a step, the host never waits for the device."""

from typing import Any

import pytest
import run_shared
import torch
from fake_device import FakeKind
from host_waits import host_waits
from run_chain import INTERLEAVED, chain_batch, chain_pipeline
from run_models import fan_batch
from run_scenarios import build

from graphpipe.run import Pipeline
from graphpipe.run.stage import edge_values, stage_replica_run
from graphpipe.run.worker.resolved_schedule import ResolvedSchedule
from graphpipe.run.worker.step_run import StepRun


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The waits inside the third step. The loss is checked in steps 1, 2, 4, 8 and so on, and reading it waits."""
    for module in (edge_values, stage_replica_run):
        monkeypatch.setattr(module, "kind_of", lambda _: FakeKind("cpu"))
    found: list[str] = []
    run = StepRun.run

    def watched(step: Any, schedule: ResolvedSchedule) -> None:
        with host_waits() as here:
            run(step, schedule)
        if step.batches.mini_batches[0].step == 3:
            found.extend(here)

    monkeypatch.setattr(StepRun, "run", watched)
    return found


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
def test_the_host_does_not_wait_inside_a_step(cut: str, options: dict[str, Any], waits: list[str]) -> None:
    pipeline, _ = build(cut, dropout=0.1, **options)
    steps(pipeline, fan_batch)
    assert not waits


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "zb-h1"},
        {"recompute": {1: "full", 2: ("c",)}},
        {"offload": {0: ("a",), 1: ("b",)}},
        {"offload": {1: ("b",)}, "offload_to": {1: (0,)}},
    ],
)
def test_split_backwards_recomputation_and_offloading_do_not_wait(options: dict[str, Any], waits: list[str]) -> None:
    pipeline, _ = chain_pipeline(INTERLEAVED, options.pop("schedule", "1f1b"), **options)
    steps(pipeline, chain_batch)
    assert not waits


@pytest.mark.parametrize("cut", [*run_shared.CUTS])
def test_tied_parameters_do_not_wait(cut: str, waits: list[str]) -> None:
    pipeline, _ = run_shared.build(cut)
    steps(pipeline, run_shared.batch)
    assert not waits


def steps(pipeline: Pipeline, batch: Any) -> None:
    for seed in range(3):
        pipeline.step(*batch(seed=seed))
