"""Operations on several streams: each comes after what it needs, and memory is not reused too soon."""

from typing import Any

import pytest
import run_shared
import torch
from run_chain import INTERLEAVED, chain_batch, chain_pipeline
from run_models import fan_batch
from run_scenarios import build
from run_streams import Race, StreamRecorder

from graphpipe.devices.cpu import HostStream
from graphpipe.devices.registry import kind_of
from graphpipe.run.device import stage_streams
from graphpipe.run.pipeline import Pipeline


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> StreamRecorder:
    found = StreamRecorder(getattr(request, "param", ""))
    monkeypatch.setattr(stage_streams, "kind_of", lambda _: found)
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
def test_every_operation_comes_after_what_it_needs(cut: str, options: dict[str, Any], recorder: StreamRecorder) -> None:
    twin, _ = build(cut, **options)
    pipeline, _ = build(cut, **options)
    with recorder:
        losses = [pipeline.step(*fan_batch(seed=step)) for step in range(3)]
        pipeline.evaluate(*fan_batch(7))
    assert losses == [twin.step(*fan_batch(seed=step)) for step in range(3)]
    assert recorder.operations > 500
    assert len(recorder.streams) > 1 + len(pipeline.plan.stages)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_halves_recomputation_and_several_stages_of_a_device(schedule: str, recorder: StreamRecorder) -> None:
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.05)  # noqa: E731
    pipeline, _ = chain_pipeline(INTERLEAVED, schedule, optimizer=adamw)
    recomputation, _ = chain_pipeline(INTERLEAVED, recompute={1: "full", 2: ("c",)}, optimizer=adamw)
    with recorder:
        for each in (pipeline, recomputation):
            assert all(each.step(*chain_batch(seed=step)) > 0 for step in range(2))


@pytest.mark.parametrize("cut", [*run_shared.CUTS])
def test_parameters_that_stages_share(cut: str, recorder: StreamRecorder) -> None:
    twin, _ = run_shared.build(cut)
    pipeline, _ = run_shared.build(cut)
    with recorder:
        losses = [pipeline.step(*run_shared.batch(seed)) for seed in range(2)]
    assert losses == [twin.step(*run_shared.batch(seed)) for seed in range(2)]


@pytest.mark.parametrize("recorder", ["fork", "between", "join", "hold"], indirect=True)
def test_a_race_is_found(recorder: StreamRecorder) -> None:
    with recorder, pytest.raises(Race, match=r"does not (hold|wait)"):
        train(build("mixed")[0])


def train(pipeline: Pipeline) -> None:
    for step in range(2):
        pipeline.step(*fan_batch(seed=step))


def test_a_cpu_has_one_stream_that_runs_operations_at_once() -> None:
    cpu = torch.device("cpu")
    kind = kind_of(cpu)
    assert isinstance(kind.new_stream(cpu), HostStream)
    assert kind.new_stream(cpu) is kind.current_stream(cpu)
