"""The simulator's memory of a rank equals what torch allocates, where plans keep, recompute and offload together."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from run_mixed_memory import peaks_of_plans, zoo_model_in
from run_ranks import run_ranks, values

from graphpipe.cluster import Cluster, HostMemory
from graphpipe.costs import CostTable, Recompute
from graphpipe.graph import Origin, Precision
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile
from graphpipe.simulator.simulate import simulate

MODEL, BATCH = "gpt-small", 32
ATTENTION, FEED_FORWARD = ([f"layers.{at}.{part}" for at in range(4)] for part in ("attention", "feed_forward"))
CUTS = {
    2: (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*")),
    4: (("layers.0.*",), ("layers.1.*",), ("layers.2.*",), ("layers.3.*", "head*")),
}
Decisions = tuple[Recompute, tuple[str, ...]]
"""What a stage recomputes, and what it offloads."""
MIXTURES: dict[int, list[list[Decisions]]] = {
    2: [
        [(("layers.0",), ()), (("layers.2",), ())],
        [((ATTENTION[0], FEED_FORWARD[1]), (FEED_FORWARD[0],)), ((ATTENTION[2],), (ATTENTION[3], FEED_FORWARD[3]))],
        [("full", ()), (("layers.3",), ("layers.2",))],
    ],
    4: [
        [((FEED_FORWARD[at],), (ATTENTION[at],)) for at in range(4)],
        [((ATTENTION[0],), ()), ("full", ()), ("none", (FEED_FORWARD[2],)), ((ATTENTION[3], FEED_FORWARD[3]), ())],
    ],
}


@cache
def measured(dtype: str, precision: Precision) -> tuple[Captured, CostTable]:
    """Return the captured model, and its operators' memory and seconds measured here, once."""
    zoo = zoo_model_in(MODEL, dtype)
    captured = capture_nodes(zoo.module, zoo.example_inputs, Origin(method="auto", precision=precision))
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
    effort = Effort(repeats=1, most=1, seconds=0.0)
    given = {"loss_fn": zoo.loss_fn, "targets": targets, "batch_sizes": (4, 8, BATCH), "effort": effort}
    return captured, profile(zoo.module, inputs, Cluster.resolve("local:4"), captured=captured, **given)


def planned(dtype: str, precision: Precision, mixture: list[Decisions], schedule: str) -> Plan:
    """Return a plan of as many stages as the mixture has, on nodes with memory beside that of their processes."""
    captured, costs = measured(dtype, precision)
    cluster = Cluster.resolve(f"local:{len(mixture)}")
    cluster = replace(cluster, host_memory=(HostMemory(node=cluster.devices[0].node, bytes=1e9),))
    stages = [
        HandStage(ops=ops, devices=(at,), micro_batch=8, recompute=recompute, offload=offload)
        for at, (ops, (recompute, offload)) in enumerate(zip(CUTS[len(mixture)], mixture, strict=True))
    ]
    return hand_plan(captured.graph, costs, cluster, batch_size=BATCH, stages=stages, schedule=schedule)


@pytest.mark.parametrize(
    ("ranks", "dtype", "precision", "schedule"),
    [
        pytest.param(2, "float32", "fp32", "gpipe", marks=pytest.mark.slow),
        (4, "float32", "fp32", "1f1b"),
        pytest.param(2, "bfloat16", "fp32", "1f1b", marks=pytest.mark.slow),
        pytest.param(2, "float32", "bf16", "1f1b", marks=pytest.mark.slow),
    ],
)
def test_measured_memory_of_mixed_decisions_is_as_predicted(
    ranks: int, dtype: str, precision: Precision, schedule: str, tmp_path: Path
) -> None:
    # Where single operators are recomputed, up to 20 % too much was predicted.
    plans = [planned(dtype, precision, mixture, schedule) for mixture in MIXTURES[ranks]]
    assert save_capture(measured(dtype, precision)[0], tmp_path / "capture.json")
    for number, each in enumerate(plans):
        each.save(tmp_path / f"plan-{number}.json")
    found = values(run_ranks(peaks_of_plans, ranks, tmp_path / "ranks", MODEL, dtype, str(tmp_path), len(plans)))
    # CPUs without instructions for bfloat16 convert in memory of their own: 12 % on one of them.
    close = 0.15 if dtype == "bfloat16" else 0.10
    for number, each in enumerate(plans):
        predicted = simulate(each).peak_bytes
        peaks = [rank[number] for rank in found]
        assert [predicted[device] for device in range(ranks)] == pytest.approx(peaks, rel=close), each.stages
