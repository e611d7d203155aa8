"""The drawings in the schedulers' docstrings are what the simulator predicts."""

from types import ModuleType

import pytest
from builders import Part, make_plan

from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import gpipe, kfkb, one_f_one_b
from graphpipe.simulator.simulate import simulate

CASES = [
    (gpipe, make_plan([Part()] * 3, batch_size=4, schedule="gpipe")),
    (one_f_one_b, make_plan([Part()] * 3, [(0, 2, 0.0), (1, 2, 0.0)], batch_size=4)),
    (
        kfkb,
        make_plan([Part(burst=2, backward=1), Part(micro_batch=2, backward=1)], batch_size=8, schedule="kfkb"),
    ),
]


def drawn(plan: Plan, device: int) -> str:
    columns: dict[int, str] = {}
    for span in simulate(plan).spans:
        if span.device == device and span.kind in ("F", "B"):
            for second in range(int(span.start_seconds), int(span.end_seconds)):
                columns[second] = f"{span.kind}{span.micro_batch}"
    return " ".join(columns.get(second, "  ") for second in range(max(columns) + 1))


@pytest.mark.parametrize(("scheduler", "plan"), CASES, ids=lambda value: getattr(value, "schedule", ""))
def test_the_docstring_draws_the_prediction(scheduler: ModuleType, plan: Plan):
    for device in plan.used_devices:
        assert f"    stage {device}   {drawn(plan, device)}\n" in (scheduler.__doc__ or "")
