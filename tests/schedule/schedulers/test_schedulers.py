"""The order of tasks under each scheduler."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule import Schedule, StageTask, merge
from graphpipe.schedule.schedulers.registry import SCHEDULERS, build_schedule


def line(plan: Plan, device: int) -> str:
    return " ".join(map(str, build_schedule(plan).devices[device]))


def test_gpipe_backwards_go_in_the_order_of_forwards():
    plan = make_plan([Part(), Part()], batch_size=3, schedule="gpipe")
    assert line(plan, 0) == "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"
    assert line(plan, 1) == "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2"


def test_1f1b_on_a_chain_warms_up_with_one_micro_batch_per_stage_that_follows():
    plan = make_plan([Part(), Part(), Part()], batch_size=4)
    assert line(plan, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert line(plan, 2) == "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3"


def test_1f1b_on_parallel_branches_warms_up_less_than_on_the_chain():
    plan = make_plan([Part(), Part(), Part()], [(0, 2, 0.0), (1, 2, 0.0)], batch_size=4)
    assert line(plan, 0) == "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3"
    assert line(plan, 1) == line(plan, 0).replace("0.", "1.")


def test_in_flight_samples_match_figure_5_of_the_paper():
    parts = [Part(micro_batch=1), Part(micro_batch=2), Part(micro_batch=4)]
    plan = make_plan(parts, batch_size=16, schedule="kfkb")
    assert [stage.in_flight for stage in plan.stages] == [10, 8, 4]
    assert [most_in_flight(plan, stage) for stage in range(3)] == [10, 8, 4]
    same = make_plan([Part(micro_batch=4)] * 3, batch_size=16, schedule="kfkb")
    assert [stage.in_flight for stage in same.stages] == [12, 8, 4]


def most_in_flight(plan: Plan, stage: int) -> int:
    found, most = 0, 0
    for task in build_schedule(plan).devices[plan.stages[stage].devices[0]]:
        found += plan.stages[stage].micro_batch * (1 if task.kind == "F" else -1)
        most = max(most, found)
    return most


def test_kfkb_matches_the_drawing_in_its_docstring():
    plan = make_plan([Part(burst=2), Part(micro_batch=2)], batch_size=8, schedule="kfkb")
    assert line(plan, 0).replace("0.", "") == "F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 F6 F7 B4 B5 B6 B7"
    assert line(plan, 1).replace("1.", "") == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_a_device_that_hosts_both_ends_of_a_chain_interleaves_them():
    parts = [Part(devices=(0,)), Part(devices=(1,)), Part(devices=(0,))]
    plan = make_plan(parts, batch_size=2)
    # Times of device 0: F0.0 0-1, F0.1 1-2 (F1.0 runs at the same time), F2.0 2-3, B2.0 3-5, F2.1 5-6.
    # F2.1 is ready at 3, but a backward goes first.
    assert line(plan, 0) == "F0.0 F0.1 F2.0 B2.0 F2.1 B2.1 B0.0 B0.1"
    assert line(plan, 1) == "F1.0 F1.1 B1.0 B1.1"


def test_replicas_of_a_stage_do_the_same_tasks():
    plan = make_plan([Part(micro_batch=2, degree=2), Part(micro_batch=2)], batch_size=8)
    assert line(plan, 0) == line(plan, 1)


def test_a_whole_batch_stage_waits_for_every_forward():
    plan = make_plan([Part(), Part(micro_batch=4)], batch_size=4)
    assert line(plan, 0) == "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3"
    assert line(plan, 1) == "F1.0 B1.0"


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_on_the_device_of_a_whole_batch_stage_the_clock_has_no_choice(schedule: str, monkeypatch: pytest.MonkeyPatch):
    """Its tasks come between the forwards and the backwards of the stage that feeds it, so no clock needs to run."""
    parts = [Part(devices=(0,)), Part(devices=(1,)), Part(micro_batch=4, devices=(1,))]
    plan = make_plan(parts, [(0, 2, 1.0), (1, 2, 1.0)], batch_size=4, schedule=schedule)
    quick = build_schedule(plan)
    assert line(plan, 1) == "F1.0 F1.1 F1.2 F1.3 F2.0 B2.0 B1.0 B1.1 B1.2 B1.3"
    monkeypatch.setattr(merge, "_only_order", lambda *_: None)
    assert build_schedule(plan) == quick


def test_an_unused_device_has_no_tasks():
    plan = make_plan([Part(), Part()], batch_size=2, device_count=3)
    assert build_schedule(plan).devices[2] == ()


def test_an_unknown_name_is_answered_with_the_nearest_name():
    plan = make_plan([Part()], schedule="1f1c")
    with pytest.raises(InvalidInput, match="Did you mean '1f1b'"):
        build_schedule(plan)


def test_too_few_samples_in_flight_for_a_burst_names_the_stage():
    plan = make_plan([Part(burst=4, in_flight=2)], schedule="kfkb")
    with pytest.raises(InvalidInput, match=r"stage 's0', in_flight: 2 samples .* must be at least 4"):
        build_schedule(plan)


def test_too_few_samples_in_flight_on_a_shared_device_is_an_error():
    parts = [Part(devices=(0,)), Part(devices=(1,), micro_batch=4), Part(devices=(0,), micro_batch=4)]
    plan = make_plan([Part(devices=(0,), in_flight=1), *parts[1:]], chain(3), batch_size=8)
    with pytest.raises(InvalidInput, match=r"wait for each other forever: B0.0 on d0"):
        build_schedule(plan)


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_text_form_round_trips(name: str):
    in_a_v = [Part(devices=(0,), in_flight=4), Part(devices=(0,), in_flight=4)]
    parts = in_a_v if SCHEDULERS[name].in_a_v else [Part(), Part(micro_batch=2, degree=2)]
    plan = make_plan(parts, batch_size=4, schedule=name)
    found = build_schedule(replace(plan, trains=SCHEDULERS[name].trains))
    assert found.name == name
    assert Schedule.parse(str(found)) == found
    assert found.devices[0][0] == StageTask("F", 0, 0)
