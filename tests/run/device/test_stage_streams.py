"""Lanes: whatever runs beside what else, each operation comes after what it needs, and no memory is reused too soon."""

from typing import Any

import pytest
import run_shared
import torch
from run_chain import INTERLEAVED, chain_batch, chain_pipeline
from run_models import fan_batch
from run_scenarios import build
from run_streams import Race, Yard

from graphpipe.run.device import stage_streams as lanes_module
from graphpipe.run.device.stream import Immediate, Stream, current_lane, new_lane
from graphpipe.run.pipeline import Pipeline


@pytest.fixture
def yard(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Yard:
    found = Yard(getattr(request, "param", ""))
    monkeypatch.setattr(lanes_module, "new_lane", found.new_lane)
    monkeypatch.setattr(lanes_module, "current_lane", found.current_lane)
    return found


CUTS: list[tuple[str, dict[str, Any]]] = [
    ("four", {}),
    ("mixed", {"clip_norm": 0.1}),
    ("pair", {"schedule": "gpipe"}),
    ("shared", {"record": True}),
    ("replicas", {}),
    ("whole", {"head": "contrast"}),
]


@pytest.mark.parametrize(("cut", "options"), CUTS)
def test_every_operation_comes_after_what_it_needs(cut: str, options: dict[str, Any], yard: Yard) -> None:
    twin, _ = build(cut, **options)
    pipeline, _ = build(cut, **options)
    with yard:
        losses = [pipeline.step(*fan_batch(seed=step)) for step in range(3)]
        pipeline.evaluate(*fan_batch(7))
    assert losses == [twin.step(*fan_batch(seed=step)) for step in range(3)]
    assert yard.operations > 500
    assert len(yard.lanes) > 1 + len(pipeline.plan.stages)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_halves_recomputation_and_several_stages_of_a_device(schedule: str, yard: Yard) -> None:
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.05)  # noqa: E731
    pipeline, _ = chain_pipeline(INTERLEAVED, schedule, optimizer=adamw)
    forgetful, _ = chain_pipeline(INTERLEAVED, recompute={1: "full", 2: ("c",)}, optimizer=adamw)
    with yard:
        for each in (pipeline, forgetful):
            assert all(each.step(*chain_batch(seed=step)) > 0 for step in range(2))


@pytest.mark.parametrize("cut", [*run_shared.CUTS])
def test_parameters_that_stages_share(cut: str, yard: Yard) -> None:
    twin, _ = run_shared.build(cut)
    pipeline, _ = run_shared.build(cut)
    with yard:
        losses = [pipeline.step(*run_shared.batch(seed)) for seed in range(2)]
    assert losses == [twin.step(*run_shared.batch(seed)) for seed in range(2)]


@pytest.mark.parametrize("yard", ["fork", "between", "join", "hold"], indirect=True)
def test_a_race_is_found(yard: Yard) -> None:
    with yard, pytest.raises(Race, match=r"does not (hold|wait)"):
        train(build("mixed")[0])


def train(pipeline: Pipeline) -> None:
    for step in range(2):
        pipeline.step(*fan_batch(seed=step))


def test_on_a_cpu_there_is_one_lane_in_which_all_is_done_at_once() -> None:
    cpu = torch.device("cpu")
    assert isinstance(new_lane(cpu), Immediate)
    assert new_lane(cpu) is current_lane(cpu)
    assert issubclass(Stream, type(new_lane(cpu)).__base__)
