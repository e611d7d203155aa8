"""Schedules that keep more samples in flight than there is memory for."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import Part, make_plan

import graphpipe as gp
from graphpipe.cluster import HostMemory
from graphpipe.costs import SavedBytes
from graphpipe.errors import Infeasible
from graphpipe.planning.choose_schedule import fitted_under, scheduled, under
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.verify import verify
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import step_seconds

GPIPE = find_scheduler("gpipe")
H1 = find_scheduler("zb-h1")


TWO = [Part(saved_bytes=10.0), Part(saved_bytes=10.0)]


def short(memory: float, parts: Sequence[Part] = TWO, edges: Sequence[tuple[int, int, float]] = ((0, 1, 2.0),)) -> Plan:
    """Return two stages that keep 10 bytes for each of 8 samples under GPipe, and receive 2 bytes."""
    plan = make_plan(parts, edges)
    kinds = tuple(replace(kind, memory_bytes=memory) for kind in plan.cluster.device_types)
    node = HostMemory(node="n0", bytes=0.0)
    return replace(plan, cluster=replace(plan.cluster, device_types=kinds, host_memory=(node,)))


def test_a_stage_without_memory_for_the_whole_mini_batch_recomputes() -> None:
    """GPipe with too little memory once was an error, although GPipe was published with recomputation (section 2.3).

    With 50 bytes, the second stage keeps the 8 x 2 bytes that it receives, and 10 while it computes one sample again.
    """
    with pytest.raises(Infeasible, match=r"keeps up to 8 samples in flight.*is 30 B \(30 bytes\) short"):
        under(GPIPE, short(50.0))
    found = fitted_under(GPIPE, short(50.0), step_seconds)
    verify(found)
    assert [stage.recompute for stage in found.stages] == ["full", "full"]
    assert [stage.in_flight for stage in found.stages] == [8, 8]
    assert found == scheduled(short(50.0), "gpipe", step_seconds)
    assert memory_shortfall(fitted_under(GPIPE, short(26.0), step_seconds)) == 0.0
    with pytest.raises(Infeasible, match=r"'gpipe' keeps up to 8 samples.*Choose schedule 1f1b, or more devices"):
        fitted_under(GPIPE, short(25.0), step_seconds)


def test_with_enough_memory_nothing_is_computed_again() -> None:
    assert fitted_under(GPIPE, short(96.0), step_seconds) == under(GPIPE, short(96.0))


def test_a_search_under_gpipe_fits_its_plan_into_memory() -> None:
    parts = [Part(saved_bytes=10.0, parameter_bytes=8.0, forward=forward) for forward in (1.0, 2.0, 1.0, 2.0)]
    given = short(180.0, parts, [(0, 1, 2.0), (1, 2, 2.0), (2, 3, 2.0)])
    plan = gp.plan(given.graph, given.costs, given.cluster, batch_size=16, schedule="gpipe", micro_batch=2)
    assert {stage.in_flight for stage in plan.stages} == {16}
    assert any(stage.recompute != "none" for stage in plan.stages)
    recomputing = [replace(stage.keeping, recompute="full") for stage in plan.stages]
    assert step_seconds(plan) < step_seconds(replace(plan, stages=tuple(recomputing)))


def test_zero_bubble_schedules_need_memory_for_gradients_that_wait() -> None:
    """They were predicted to fit, because no cost had the gradients."""
    plan = short(46.0)
    rows = tuple(replace(row, between_halves=SavedBytes(per_sample=30.0)) for row in plan.costs.rows)
    waiting = replace(plan, costs=replace(plan.costs, rows=rows))
    assert under(H1, plan).schedule == "zb-h1"
    with pytest.raises(Infeasible, match="short"):
        under(H1, replace(waiting, cluster=short(24.0).cluster))
    kept = scheduled(replace(waiting, cluster=short(24.0).cluster), "auto", step_seconds)
    assert all(span.kind not in ("I", "W") for span in gp.simulate(kept).spans)
