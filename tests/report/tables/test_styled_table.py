"""Tables fit narrow terminals: whole columns are left out before any column is cut."""

import pytest
from builders import Part, make_plan
from rich.console import Console, RenderableType

from graphpipe.plans import Prediction
from graphpipe.report import Outcome, compare_table, summarise
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.styled_table import Column, FittingTable

PLAN = make_plan([Part(micro_batch=2), Part(micro_batch=2, degree=2)], [(0, 1, 0.0)], batch_size=4)
PREDICTION = Prediction(step_seconds=8.0, bubble_fraction=0.25, peak_bytes=(123456789.0, 2048.0, 512.0))


def draw(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_least_important_columns_are_left_out_first_and_named() -> None:
    columns = [Column(heading="name"), Column(heading="second", spare=1), Column(heading="third", spare=2)]
    table = FittingTable(columns=columns, rows=[["abc", "d", "e"]])
    wide = len("name  second  third ")
    assert draw(table, wide)[0].split() == ["name", "second", "third"]
    assert draw(table, wide - 1)[0].split() == ["name", "second"]
    assert " ".join(draw(table, 12)[3:]) == "no room for: second, third (widen the terminal)"


@pytest.mark.parametrize("width", [160, 100, 80, 60, 50])
def test_plan_and_compare_fit(width: int) -> None:
    outcomes = [Outcome(planner="graphpipe", status="ok", summary=summarise(PLAN, PREDICTION))]
    for table in (plan_table(PLAN, PREDICTION), compare_table(outcomes)):
        lines = draw(table, width)
        assert all(len(line) <= width for line in lines)
        assert "…" not in "".join(lines)


def test_at_80_characters_a_plan_still_shows_devices_samples_and_memory() -> None:
    lines = draw(plan_table(PLAN, PREDICTION), 80)
    for word in ("stage", "devices", "samples", "memory", "feeds"):
        assert word in lines[1].split()
    assert "118 MiB (12%)" in lines[3]


def test_columns_that_always_stay_are_cut_in_the_narrowest_terminals() -> None:
    lines = draw(plan_table(PLAN, PREDICTION), 20)
    assert all(len(line) <= 20 for line in lines)
    assert "no room for:" in " ".join(lines)
