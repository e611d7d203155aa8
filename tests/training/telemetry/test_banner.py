"""The banner's figures: the memory that each rank needs, and the places that have too little."""

import pytest
from run_models import STAGES
from run_scenarios import build

from graphpipe.devices.cpu import CPU
from graphpipe.run.comm.rank_placement import RankLayout, ReplicaLayout
from graphpipe.run.comm.world import join
from graphpipe.training.telemetry.banner import Readiness, readiness, shortages, show_banner


def rank(number: int, place: str, predicted: float | None, available: float) -> Readiness:
    replica = ReplicaLayout(stage=f"s{number}", device=f"d{number}", replica=1, degree=2, micro_batch=8)
    return Readiness(
        layout=RankLayout(rank=number, replicas=(replica,)),
        place=place,
        predicted_bytes=predicted,
        available_bytes=available,
    )


def test_ranks_of_one_host_share_its_memory() -> None:
    # 60 + 50 > 100 on the first host; the second has exactly enough.
    ready = [rank(0, "one", 60.0, 100.0), rank(1, "one", 50.0, 101.0), rank(2, "two", 100.0, 100.0)]
    (sentence,) = shortages(ready)
    assert sentence.startswith("one: ranks 0, 1 will need 110 B, 100 B is available.")
    assert shortages(ready[1:]) == []
    assert shortages([rank(0, "one", None, 0.0)]) == []


def test_the_banner_warns_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_banner([rank(0, "one", 2048.0, 1024.0)])
    output = capsys.readouterr().err
    row = next(line for line in output.splitlines() if line.startswith("0"))
    assert [cell.strip() for cell in row.split("  ") if cell.strip()] == [
        *("0", "one", "d0", "s0 (replica 2 of 2)", "8 / 2", "2.00 KiB", "1.00 KiB")
    ]
    assert "warning: one: rank 0 will need 2.00 KiB, 1.00 KiB is available." in output
    assert "\x1b" not in output


def test_one_rank_hosts_every_stage() -> None:
    pipeline, _ = build("mixed")
    (ready,) = readiness(pipeline.world, pipeline.plan)
    assert len(ready.layout.replicas) == sum(len(devices) for _, devices, _ in STAGES["mixed"])
    assert pipeline.plan.prediction is None
    assert ready.predicted_bytes is None
    assert ready.available_bytes == pytest.approx(CPU.available_bytes(join("cpu", 1.0).device), rel=0.2)
