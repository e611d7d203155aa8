"""A two-tower model that needs 1.5 times the memory of its ranks trains, because the plan recomputes some operators.

The head compares all samples of a mini-batch, so that smaller micro-batches would free nothing. The system enforces
the cap (`RLIMIT_DATA`).
"""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from run_capped import STEPS, train_capped, two_towers
from run_ranks import run_ranks, values

from graphpipe.cluster import Cluster
from graphpipe.errors import Infeasible
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.planning.plan import plan
from graphpipe.plans.verify import verify
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile
from graphpipe.simulator.simulate import simulate

BATCH, MICRO = 512, 64
MARGIN = 0.9
"""The share of the cap that the plan may use, because predictions are within 10 %."""


def limited(memory_bytes: float) -> Cluster:
    cluster = Cluster.resolve("local:2")
    return replace(
        cluster, device_types=tuple(replace(each, memory_bytes=memory_bytes) for each in cluster.device_types)
    )


@pytest.mark.slow
def test_two_towers_train_under_a_cap_thanks_to_decisions(tmp_path: Path) -> None:
    zoo = two_towers()
    captured = capture_nodes(zoo.module, zoo.example_inputs)
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
    effort = Effort(repeats=1, most=1, seconds=0.0)
    given = {"loss_fn": zoo.loss_fn, "targets": targets, "batch_sizes": (8, MICRO, BATCH), "effort": effort}
    costs = profile(zoo.module, inputs, limited(1e12), captured=captured, **given)
    options = {"batch_size": BATCH, "micro_batch": MICRO, "schedule": "1f1b"}
    keeping = plan(captured.graph, costs, limited(1e12), **options)
    assert all(stage.recompute == "none" for stage in keeping.stages)
    cap = max(simulate(keeping).peak_bytes) / 1.5
    deciding = plan(captured.graph, costs, limited(MARGIN * cap), **options)
    assert any(isinstance(stage.recompute, tuple) for stage in deciding.stages)
    with pytest.raises(Infeasible, match=r"stage .* needs .* bytes\) short"):
        verify(replace(keeping, cluster=limited(cap)))

    keeping.save(tmp_path / "keeping.json")
    deciding.save(tmp_path / "deciding.json")
    assert save_capture(captured, tmp_path / "capture.json")
    expected = values(run_ranks(train_capped, 2, tmp_path / "free", str(tmp_path), ["keeping.json"], None))
    capped = ["deciding.json", "keeping.json"]
    found = values(run_ranks(train_capped, 2, tmp_path / "capped", str(tmp_path), capped, cap))
    for rank in range(2):
        assert found[rank][:1] == expected[rank]
        assert len(found[rank][0]) == STEPS
    errors = [cast(str, rank[1]) for rank in found]
    short = [error for error in errors if error.startswith("OutOfMemory: ")]
    assert short, errors
    for error in short:
        assert "stage 's" in error
        assert "you tried to allocate" in error
