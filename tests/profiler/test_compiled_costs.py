"""Costs of compiled layers: the compiler runs what is timed, and costs of both kinds are kept apart."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphpipe as gp
from bench.running.compiled import Pointwise
from graphpipe.costs import CostTable, SavedBytes
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.profiler import profile as profiling
from graphpipe.profiler.effort import Effort

QUICK = Effort(repeats=5, seconds=0.02, clock=time.thread_time)


@pytest.mark.slow
@pytest.mark.skipif(bool(INDUCTOR.missing()), reason=INDUCTOR.missing() or "there is a compiler")
@pytest.mark.timeout(240)
def test_layers_are_measured_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once the memory of an operator was measured before it was compiled, the compiler passed over it for good."""
    made: list[StageCompiler] = []

    def compiler(**options: Any) -> StageCompiler:
        made.append(StageCompiler(**options))
        return made[-1]

    monkeypatch.setattr(profiling, "StageCompiler", compiler)
    model, x = nn.Sequential(Pointwise(), Pointwise(), nn.Linear(64, 2)), torch.randn(8, 128, 64)
    graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:1")

    def measured(*, compiled: bool) -> CostTable:
        return gp.profile(
            model, x, cluster, graph=graph, batch_sizes=(8,), effort=QUICK, compile=compiled, cache=tmp_path
        )

    eager, costs = measured(compiled=False), measured(compiled=True)
    (used,) = made
    assert used.compilations["Pointwise"] >= 1
    assert not used.failed
    assert set(used.compilations) == {"Pointwise"}  # the linear layer is no region of its own
    assert costs.rows[0].forward(8) < eager.rows[0].forward(8)
    assert costs.rows[0].saved is not None
    assert costs.rows[0].saved.per_sample < 0.5 * graph.ops[0].work.saved_bytes_per_sample
    assert costs.rows[2].saved == SavedBytes(per_sample=0.0)  # nothing of its own: its input counts for what made it
    assert measured(compiled=False).rows == eager.rows  # from the cache
    assert measured(compiled=True).rows == costs.rows
