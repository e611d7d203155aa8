"""Zero-bubble schedules in the simulator: published figures, closed forms, drawings, memory."""

import csv
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from builders import Part, chain, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.cluster import Link
from graphpipe.costs import Curve
from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes, stage_memory
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers import zb_auto, zb_h1
from graphpipe.simulator import step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "zero-bubble" / "profiles.csv"
TASKS = ("F", "B", "I", "W")
BRANCHES = [(0, 1, 0.0), (1, 3, 0.0), (2, 3, 0.0)]


def with_seconds(plan: Plan, forward: float, inputs: float, weights: float, kept: float = 1.0) -> Plan:
    """Return the plan with these seconds per sample at every stage."""
    lines = {"forward": forward, "input_gradient": inputs, "weight_gradient": weights}
    curves = {name: Curve(lines=((0.0, seconds),)) for name, seconds in lines.items()}
    rows = tuple(replace(row, **curves) for row in plan.costs.rows)
    return replace(plan, costs=replace(plan.costs, rows=rows, kept_for_weight_gradient=kept))


def own_seconds(trace: Trace) -> float:
    """Return the longest time of a device from its first task to its last, which the published figures count."""
    spans = {device: [span for span in trace.spans if span.device == device] for device in trace.used_devices}
    tasks = {device: [span for span in mine if span.kind in TASKS] for device, mine in spans.items()}
    return max(
        max(span.end_seconds for span in mine) - min(span.start_seconds for span in mine) for mine in tasks.values()
    )


def published_row(model: str) -> dict[str, str]:
    if not DATA.exists():
        pytest.skip("the published zero-bubble profiles are missing")
    lines = [text for text in DATA.read_text(encoding="utf-8").splitlines() if not text.startswith("#")]
    return next(row for row in csv.DictReader(lines) if row["model"] == model)


def published_plan(row: dict[str, str], name: str, multiple: int) -> Plan:
    """Return a chain with the published seconds. Stages may hold `multiple` times what 1F1B holds at the first one."""
    depth, count = int(row["p"]), int(row["m"])
    part = Part(in_flight=None if name == "1f1b" else multiple * depth)
    link = Link(latency_seconds=float(row["t_comm_us"]), bandwidth_bytes_per_second=1e12)
    plan = make_plan([part] * depth, chain(depth, 1.0), batch_size=count, link=link, schedule=name)
    # Bytes per token and layer: a forward keeps 34 h + 5 a s, of which a weight gradient needs 32 h.
    hidden, scores = int(row["hidden"]), 5 * int(row["heads"]) * 1024
    kept = 32 * hidden / (34 * hidden + scores)
    return with_seconds(plan, float(row["t_f_us"]), float(row["t_b_us"]), float(row["t_w_us"]), kept)


@pytest.mark.parametrize(
    ("model", "name", "multiple", "published"),
    [
        ("1.5B", "1f1b", 1, 0.2431),
        ("1.5B", "zb-h1", 1, 0.1585),
        ("1.5B", "zb-auto", 1, 0.1585),
        ("1.5B", "zb-auto", 2, 0.0433),
        ("6.2B", "1f1b", 1, 0.2347),
        ("6.2B", "zb-h1", 1, 0.1323),
        ("6.2B", "zb-auto", 1, 0.1323),
        ("6.2B", "zb-auto", 2, 0.0029),
    ],
)
def test_bubbles_are_the_published_ones(model: str, name: str, multiple: int, published: float):
    row = published_row(model)
    trace = simulate(published_plan(row, name, multiple))
    work = int(row["m"]) * sum(float(row[field]) for field in ("t_f_us", "t_b_us", "t_w_us"))
    bubble = round(1 - work / own_seconds(trace), 4)
    assert bubble <= published
    assert bubble == published or name == "zb-auto"
    if name != "zb-auto":
        assert own_seconds(trace) == pytest.approx(trace.step_seconds)


@pytest.mark.parametrize(("depth", "count"), [(2, 4), (4, 8), (4, 12), (8, 24)])
@pytest.mark.parametrize("seconds", [(1, 1, 1), (3, 2, 1), (4, 5, 2)])
def test_bubbles_of_a_balanced_chain_are_the_closed_forms(depth: int, count: int, seconds: tuple[int, int, int]):
    forward, inputs, weights = seconds
    plan = with_seconds(make_plan([Part()] * depth, batch_size=count), forward, inputs, weights)
    work = count * sum(seconds)
    assert simulate(plan).step_seconds == work + (depth - 1) * (forward + inputs + weights)
    roomy = replace(plan, stages=tuple(replace(stage, in_flight=depth) for stage in plan.stages))
    h1 = simulate(replace(roomy, schedule="zb-h1")).step_seconds
    assert h1 == work + (depth - 1) * (forward + inputs - weights)
    # The last stage cannot begin before depth - 1 forwards, nor be done before all its work.
    assert work + (depth - 1) * forward <= simulate(replace(roomy, schedule="zb-auto")).step_seconds <= h1


CASES = [
    (scheduler, make_plan([Part(in_flight=3)] * 4, BRANCHES, batch_size=6, schedule=name))
    for scheduler, name in ((zb_h1, "zb-h1"), (zb_auto, "zb-auto"))
]


def drawn(plan: Plan, device: int) -> str:
    columns: dict[int, str] = {}
    for span in simulate(plan).spans:
        if span.device == device and span.kind in TASKS:
            for second in range(int(span.start_seconds), int(span.end_seconds)):
                columns[second] = f"{span.kind}{span.micro_batch}"
    return " ".join(columns.get(second, "  ") for second in range(max(columns) + 1))


@pytest.mark.parametrize(("scheduler", "plan"), CASES, ids=["zb-h1", "zb-auto"])
def test_the_docstring_draws_the_prediction(scheduler: ModuleType, plan: Plan):
    for device in plan.used_devices:
        assert f"    stage {device}   {drawn(plan, device)}\n" in (scheduler.__doc__ or "")


def test_the_pictured_plan_takes_24_21_and_20():
    seconds = [make_plan([Part()] * 4, BRANCHES, batch_size=6), *(plan for _, plan in CASES)]
    assert [step_seconds(plan) for plan in seconds] == [24, 21, 20]


def test_four_branches_at_equal_peak_memory_gain_a_tenth():
    # Four branches of seven stages that join in the last; 32 micro-batches. 1F1B: (32 + 7) x 3.
    edges = [(branch * 7 + at, branch * 7 + at + 1, 0.0) for branch in range(4) for at in range(6)]
    edges += [(branch * 7 + 6, 28, 0.0) for branch in range(4)]
    plan = make_plan([Part(saved_bytes=10.0)] * 29, edges, batch_size=32)
    peak = max(simulate(plan).peak_bytes)
    split = replace(with_room(plan, max(needed_bytes(plan).values())), schedule="zb-auto")
    trace = simulate(split)
    assert simulate(plan).step_seconds == 39 * 3
    assert trace.step_seconds * 1.1 <= 39 * 3
    assert max(trace.peak_bytes) == peak == 8 * 10


def test_the_halves_of_a_backward_take_its_seconds_and_one_more_overhead():
    plan = with_seconds(make_plan([Part()] * 2, batch_size=1), 1, 3, 5)
    plan = replace(plan, costs=replace(plan.costs, task_overhead_seconds=0.5))
    split = Schedule.parse("schedule hand\n0: F0.0 B0.0\n1: F1.0 I1.0 W1.0\n")
    spans = {(span.device, span.kind): span for span in simulate(plan, split).spans}
    lasted = {key: span.end_seconds - span.start_seconds for key, span in spans.items()}
    assert lasted[0, "B"] == 3 + 5 + 0.5
    assert (lasted[1, "I"], lasted[1, "W"]) == (3.5, 5.5)
    # The gradient is there when the input half is done: 1.5 + 1.5 + 3.5.
    assert spans[0, "B"].start_seconds == spans[1, "W"].start_seconds == 6.5


@pytest.mark.parametrize(("kept", "held"), [(1.0, [10, 10, 0]), (0.25, [10, 2.5, 0]), (0.0, [10, 0, 0])])
def test_activations_stay_until_the_weight_gradient_but_for_the_share_that_is_freed(kept: float, held: list[float]):
    plan = with_seconds(make_plan([Part(saved_bytes=10)], batch_size=1), 1, 1, 1, kept)
    trace = simulate(plan, Schedule.parse("schedule hand\n0: F0.0 I0.0 W0.0\n"))
    found = {sample.seconds: sample.bytes for sample in trace.memory}
    at = [max((sample for sample in found if sample <= seconds), default=0.0) for seconds in (0.5, 2.5, 3.5)]
    assert [found[seconds] for seconds in at] == held


@settings(max_examples=15, deadline=None)
@given(plans(batch_size=8), st.sampled_from(["zb-h1", "zb-auto"]), st.sampled_from([1.0, 0.5]))
def test_memory_stays_within_the_samples_in_flight_and_returns_to_the_weights(plan: Plan, name: str, kept: float):
    plan = replace(plan, schedule=name, costs=replace(plan.costs, kept_for_weight_gradient=kept))
    needed, trace = needed_bytes(plan), simulate(plan)
    for device in plan.used_devices:
        held = [sample.bytes for sample in trace.memory if sample.device == device]
        hosted = [stage for stage in plan.stages if device in stage.devices]
        state = sum(stage_memory(plan.cost_model, stage).state for stage in hosted)
        assert held[-1] == pytest.approx(state)
        assert max(held) <= needed[device] + 1e-6


@settings(max_examples=15, deadline=None)
@given(plans(batch_size=16, quick=True), st.sampled_from(["zb-h1", "zb-auto"]))
def test_the_quick_step_time_is_the_simulation(plan: Plan, name: str):
    plan = replace(with_room(plan), schedule=name)
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(plans(batch_size=16, quick=True, micro_batches=(1, 2), schedules=("1f1b",)))
def test_the_automatic_schedule_alone_is_no_slower_where_nothing_is_sent(plan: Plan):
    edges = tuple(replace(edge, bytes_per_sample=0.0) for edge in plan.edges)
    plan = replace(plan, edges=edges)
    assert step_seconds(replace(plan, schedule="zb-auto")) <= step_seconds(plan) * (1 + 1e-9)


def test_of_schedules_that_end_together_the_one_of_the_shortest_stages_is_chosen():
    # H1 ends as early, but its longest stage takes 0.75 s more from its first task to its last.
    parts = [Part(forward=0.5, backward=0.5, in_flight=16)] * 2 + [Part(forward=0.5, backward=1.0, in_flight=16)]
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=4.0)
    plan = make_plan(parts, [(0, 1, 0.5), (0, 2, 0.5), (1, 2, 0.5)], batch_size=16, link=link, schedule="zb-h1")
    found = {name: simulate(replace(plan, schedule=name)) for name in ("zb-h1", "zb-auto")}
    assert {name: trace.step_seconds for name, trace in found.items()} == {"zb-h1": 25.25, "zb-auto": 25.25}
    assert {name: own_seconds(trace) for name, trace in found.items()} == {"zb-h1": 24.75, "zb-auto": 24.0}
