"""A scheduler from outside the package is chosen by its name, like the built-in ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Part, make_plan

import graphpipe as gp
from graphpipe.cli.main import main
from graphpipe.errors import InvalidInput
from graphpipe.planning.choose_schedule import AS_PLANNED, check_choice, schedule_choices, scheduled
from graphpipe.plans import Plan
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import one_f_one_b, zb_auto
from graphpipe.schedule.schedulers.registry import SCHEDULERS, build_schedule, register_scheduler
from graphpipe.simulator import step_seconds

SOURCE = '''
"""One micro-batch after the other: the pipeline never overlaps two."""

from graphpipe.schedule import StageTask
from graphpipe.schedule.merge import merge
from graphpipe.schedule.scheduler import Scheduler


def build(plan):
    """Return the schedule of a plan."""
    orders = [
        [StageTask(kind, stage, index) for index in range(plan.micro_batches(stage)) for kind in ("F", "B")]
        for stage in range(len(plan.stages))
    ]
    return merge("serial", plan, orders)


SCHEDULER = Scheduler(name="serial", build=build)
'''


@pytest.fixture(autouse=True)
def only_for_one_test() -> Iterator[None]:
    with SCHEDULERS.restored():
        yield


@pytest.fixture
def serial() -> Scheduler:
    names: dict[str, Scheduler] = {}
    exec(SOURCE, names)
    return names["SCHEDULER"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that declares the scheduler by an entry point."""
    (tmp_path / "outsider.py").write_text(SOURCE)
    declared = tmp_path / "outsider-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1\n")
    (declared / "entry_points.txt").write_text("[graphpipe.schedulers]\nserial = outsider:SCHEDULER\n")
    monkeypatch.syspath_prepend(tmp_path)
    return declared / "entry_points.txt"


def test_a_registered_scheduler_is_planned_saved_and_simulated(serial: Scheduler, tmp_path: Path):
    register_scheduler(serial)
    drawn = make_plan([Part(), Part()])
    plan = gp.plan(drawn.graph, drawn.costs, drawn.cluster, batch_size=8, schedule="serial")
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.schedule == "serial"
    assert plan.prediction is not None
    assert gp.simulate(loaded).step_seconds == pytest.approx(plan.prediction.step_seconds)
    assert build_schedule(loaded).name == "serial"


def test_the_command_line_finds_the_scheduler_of_an_installed_package(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = str(tmp_path / "plan.json")
    on = ("two-tower-small", "--cluster", "local:2", "--batch", "16", "--schedule")
    assert main(["plan", *on, "serial", "-o", file]) == 0
    assert main(["simulate", file]) == 0
    assert "serial" in schedule_choices()
    assert main(["plan", *on, "serious"]) == 2
    assert "unknown schedule 'serious'. Did you mean 'serial'?" in capsys.readouterr().err.replace("\n", " ")


def test_a_plan_file_finds_the_scheduler_of_an_installed_package(package: Path):
    assert "serial" not in SCHEDULERS
    assert step_seconds(make_plan([Part(), Part()], batch_size=3, schedule="serial")) == 3 * 6


def test_auto_takes_a_registered_scheduler_that_is_faster():
    def built(plan: Plan) -> Schedule:
        return replace(one_f_one_b.build(plan), name="roomy")

    plan = make_plan([Part(in_flight=1), Part(), Part()], batch_size=8)
    assert scheduled(replace(plan, schedule=zb_auto.NAME), "auto", step_seconds).schedule == zb_auto.NAME
    register_scheduler(Scheduler(name="roomy", build=built, uses_spare_memory=True, tried_by_auto=True))

    def evaluate(trial: Plan) -> float:
        return 1.0 if trial.schedule == "roomy" else 2.0

    assert scheduled(plan, "auto", evaluate).schedule == "roomy"
    assert scheduled(replace(plan, schedule=zb_auto.NAME), "auto", evaluate).schedule == "roomy"


def test_a_name_can_be_registered_only_once():
    register_scheduler(SCHEDULERS["1f1b"])
    with pytest.raises(InvalidInput, match="schedule '1f1b': another schedule has this name"):
        register_scheduler(Scheduler(name="1f1b", build=zb_auto.build))


@pytest.mark.parametrize("traits", [{"flushes": False}, {"weight_versions": 2}])
def test_an_asynchronous_scheduler_is_refused(traits: dict[str, int]):
    with pytest.raises(InvalidInput, match="keeps one version of its weights and updates it once per mini-batch"):
        register_scheduler(Scheduler(name="pipedream", build=zb_auto.build, **traits))  # pyright: ignore[reportArgumentType]


def test_an_installed_scheduler_that_cannot_be_imported_is_named(package: Path):
    package.write_text("[graphpipe.schedulers]\nserial = outsider:MISSING\n")
    with pytest.raises(InvalidInput, match=r"entry point 'serial' of graphpipe.schedulers: 'outsider:MISSING' cannot"):
        schedule_choices()
    package.write_text("[graphpipe.schedulers]\nserial = outsider:build\n")
    with pytest.raises(InvalidInput, match="'outsider:build' is a function, must be a Scheduler"):
        schedule_choices()


def test_kfkb_is_not_among_the_choices_of_a_caller():
    assert schedule_choices() == ("auto", "1f1b", "interleaved", "dualpipe-v", "gpipe", "zb-h1", "zb-auto")
    assert AS_PLANNED in schedule_choices()
    with pytest.raises(InvalidInput, match="unknown schedule 'kfkb'"):
        check_choice("kfkb")
