"""One declaration per setting: defaults, checks, and the same field in Python, in a configuration and as an option."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import graphpipe as gp
from graphpipe.cli.main import make_parser
from graphpipe.cli.setting_options import field_docs
from graphpipe.errors import InvalidInput
from graphpipe.planning.settings import PlanSection, PlanSettings, asked
from graphpipe.training.config.settings import TrainConfig, TrainSettings

PACKAGE = Path(gp.__file__).parent
SHORTER_NAMES = {"loads": "--load"}
OF_COMPARE = {"planner": "--planners"}


@pytest.mark.parametrize("kind", [PlanSettings, PlanSection])
def test_every_field_has_a_docstring(kind: type[Any]) -> None:
    docs = field_docs(kind)
    assert all(docs[field.name] for field in fields(kind))


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_every_field_is_an_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([verb, "--help"])
    shown = capsys.readouterr().out
    names = {field.name for field in fields(PlanSettings)} - ({"inference"} if verb == "compare" else set())
    for name in names:
        special = SHORTER_NAMES | (OF_COMPARE if verb == "compare" else {})
        assert special.get(name, f"--{name.replace('_', '-')}") in shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batch": 0}, "micro_batch: is 0, must be at least 1"),
        ({"stages_per_device": 0}, "stages_per_device: is 0, must be at least 1"),
        ({"offload_to": "disk"}, "offload_to: is 'disk', must be 'host' or 'neighbours'"),
        ({"objective": "speed"}, "unknown objective 'speed'"),
        ({"objective": "latency"}, "Of training it is step or bottleneck"),
        ({"inference": True, "objective": "step"}, "Of inference it is throughput or latency"),
        ({"effort": "thorugh"}, "unknown effort 'thorugh'. Did you mean 'thorough'?"),
        ({"effort": 0}, "effort: is 0, must be more than 0 seconds"),
        ({"effort": True}, "effort: is True, must be more than 0 seconds"),
        ({"weights": "predict"}, "predictor: is missing"),
        ({"predictor": "xpipe"}, "predictor: is 'xpipe', but weights is 'flush'"),
        ({"loads": ("vision=many",)}, "vision=many"),
        ({"shedule": "1f1b"}, "unknown setting 'shedule' of a plan. Did you mean 'schedule'?"),
    ],
)
def test_a_wrong_value_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(None, settings)
    assert message in str(refused.value)


def test_keywords_change_settings() -> None:
    base = PlanSettings(planner="spp", schedule="1f1b")
    assert asked(base, {"schedule": "gpipe"}) == PlanSettings(planner="spp", schedule="gpipe")
    assert asked(None, {}) == PlanSettings()


@pytest.mark.parametrize(
    ("written", "choice"),
    [("none", "none"), ("auto", "auto"), ("a.b, c:4,d:rows4", ["a.b", "c:4", "d:rows4"]), (["a", "b"], ["a", "b"])],
)
def test_splits_as_a_person_writes_them(written: str | list[str], choice: object) -> None:
    assert PlanSettings(split=written).split_choice == choice


def test_loads_are_texts_or_a_mapping() -> None:
    shares = {"vision": {1.0: 0.5, 4.0: 0.5}}
    texts = PlanSettings(loads=("vision=1:0.5,4:0.5",))
    assert texts.sample_loads == PlanSettings(loads=shares).sample_loads == shares
    assert PlanSettings(loads=()).sample_loads is PlanSettings().sample_loads is None


def test_a_training_does_not_plan_for_inference() -> None:
    train = TrainSettings(batch_size=8, steps=1)
    with pytest.raises(InvalidInput, match=r"plan\.inference: is true, but a configuration is for training"):
        TrainConfig(task="t.py:task", cluster="local:2", train=train, plan=PlanSection(inference=True))


@pytest.mark.slow
def test_a_new_field_is_declared_in_one_place(tmp_path: Path) -> None:
    """A copy of the package gets one more field. Nothing else is written, and every front end has it."""
    shutil.copytree(PACKAGE, tmp_path / "graphpipe", ignore=shutil.ignore_patterns("__pycache__"))
    settings = tmp_path / "graphpipe/planning/settings.py"
    last = '    offload_to: OffloadTo = "host"\n'
    text = settings.read_text(encoding="utf-8")
    assert last in text
    new = '    rings: int = 2\n    """Rings that messages may take."""\n'
    settings.write_text(text.replace(last, new + last), encoding="utf-8")
    (tmp_path / "t.toml").write_text(
        'task = "t.py:t"\ncluster = "local:2"\n[plan]\nrings = 3\n[train]\nsteps = 1\nbatch_size = 4\n'
    )
    program = """
import graphpipe as gp
from graphpipe.cli.main import main, make_parser
from graphpipe.planning.honoured import check_asked
from graphpipe.training.config.from_toml import read_config
assert main(["plan", "--help"]) == main(["compare", "--help"]) == 0
assert make_parser().parse_args(["plan", "m", "--cluster", "c", "--batch", "4", "--rings", "5"]).rings == 5
assert read_config("t.toml").plan.rings == 3 and read_config("t.toml", ["plan.rings=4"]).plan.rings == 4
try:
    check_asked(gp.PlanSettings(rings=3), 4)
except gp.InvalidInput as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--rings RINGS") >= 2
    assert "rings that messages may take" in done.stdout
    assert "rings: is 3, but planner 'graphpipe' does not follow it" in done.stdout
