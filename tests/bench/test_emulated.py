"""The campaign on emulated GPUs: what is drawn can be trained, and what goes wrong is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_models import BATCH, fan, fan_batch
from run_plans import plan_of
from run_ranks import Outcome

from bench.faults import emulated
from bench.faults.emulated import FAULTS, SCHEDULES, Draw, carry_out, draw
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule


def test_every_draw_can_be_trained_and_all_kinds_occur() -> None:
    draws, inputs = [draw(0, number) for number in range(60)], fan_batch()[0]
    assert draws[:3] == [draw(0, number) for number in range(3)]
    for drawn in draws:
        plan = plan_of(fan(), inputs, drawn.lines, BATCH, drawn.schedule)
        assert lower(plan, build_schedule(plan)).order
        assert 2 <= drawn.ranks == len(plan.used_devices) <= 6
        assert not drawn.fault or plan.stages[-1].degree == 1
    assert {drawn.schedule for drawn in draws} == {*SCHEDULES}
    assert {drawn.fault for drawn in draws} == {*FAULTS}
    assert any(len(devices) > 1 for drawn in draws for _, devices, _ in drawn.lines)


def trained(**changes: Any) -> Outcome:
    return Outcome({"broken": [], "losses": [1.0, 0.5]} | changes, "", 1.0, 0)


def lost(error: str, seconds: float = 5.0) -> Outcome:
    return Outcome(None, error, seconds, 0)


@pytest.mark.parametrize(
    ("fault", "outcomes", "problem"),
    [
        ("", [trained(), trained()], ""),
        ("", [trained(), trained(losses=[1.0, 0.6])], "rank 1: losses"),
        ("", [trained(broken=["a send is not contiguous"]), trained()], "rank 0: a send is not contiguous"),
        ("", [trained(), lost("KeyError")], "rank 1 ended with 0: KeyError"),
        ("kill", [lost("PeerLost: rank 1 died"), lost("")], ""),
        ("kill", [lost("PeerLost: rank 0 died"), lost("")], "rank 1 is not named"),
        ("kill", [lost("RuntimeError"), lost("")], "not every other rank says"),
        ("hang", [lost("PeerStalled: rank 1 hangs", 90.0), lost("")], "ended after 90 s"),
    ],
)
def test_what_goes_wrong_is_said(
    fault: str, outcomes: list[Outcome], problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [(["stem", "left"], [0], 4), (["right", "head"], [1], 4)]
    drawn = Draw(number=0, ranks=2, lines=lines, schedule="1f1b", eager=False, fault=fault)
    modules = {
        "run_ranks": SimpleNamespace(run_ranks=lambda *_, **__: outcomes),
        "run_emulated": SimpleNamespace(
            train_alone=lambda *_: {"losses": [1.0, 0.5]}, train_drawn=None, fail_drawn=None
        ),
    }
    monkeypatch.setattr(emulated, "import_module", modules.__getitem__)
    said = carry_out(drawn, tmp_path)
    assert problem in said
    assert bool(said) == bool(problem)
