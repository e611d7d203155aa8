"""`graphpipe train CONFIG --print-config`: every setting and its source."""

import tomllib
from pathlib import Path

import pytest
from cli_cases import Run
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.config.sources import key_lines, leaves

TEXT = """\
task = "tiny.py:task"   # a comment

cluster = '''
local:2'''
plan = { costs = "estimate", micro_batch = 4 }

[train]
# a comment with "quotes" and = signs
batch_size = 16
loggers = [
    "tensorboard",
    # [optimizer]
    "wandb",
]
steps = 6
[optimizer]
lr = 0.05
"""


def test_the_lines_of_keys_in_every_form_of_toml() -> None:
    lines = {".".join(key): line for key, line in key_lines(TEXT).items()}
    assert lines == {
        **{"task": 1, "cluster": 3, "plan.costs": 5, "plan.micro_batch": 5, "train.batch_size": 9},
        **{"train.loggers": 10, "train.steps": 15, "optimizer.lr": 17},
    }


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["1", '"x"', "[\n1,\n2]", "'''\nb = 1\n'''"])))
def test_the_lines_of_keys_in_generated_files(values: dict[str, str]) -> None:
    text = "".join(f"# {name}\n{name} = {value}\n" for name, value in values.items())
    lines = key_lines(text)
    assert lines.keys() == {key for key, _ in leaves(tomllib.loads(text))}
    for (name,), line in lines.items():
        assert text.splitlines()[line - 1] == f"{name} = {values[name].splitlines()[0]}"


def test_the_source_of_every_setting_is_shown(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHPIPE__OPTIMIZER__LR", "0.5")
    monkeypatch.setenv("GRAPHPIPE__TRAIN__STEPS", "9")
    ran = run("train", config, "--print-config", "--json", "train.steps=7", "--torch-profiler", "steps=2")
    assert ran.code == 0, ran.err
    sources, settings = ran.json["sources"], ran.json["config"]
    assert sources["train.batch_size"] == f"{config}:7"
    assert sources["train.seed"] == sources["run.name"] == "default"
    assert (sources["optimizer.lr"], settings["optimizer"]["lr"]) == ("environment GRAPHPIPE__OPTIMIZER__LR", 0.5)
    assert (sources["train.steps"], settings["train"]["steps"]) == ("override train.steps=7", 7)
    assert (sources["run.profile_steps"], settings["run"]["profile_steps"]) == ("override run.profile_steps=2", 2)
    assert sources.keys() == {".".join(key) for key, _ in leaves(settings)}
    assert "override train.steps=7" in ran.err
    assert not Path("runs").exists()


def test_the_table_has_a_line_per_setting(run: Run, config: Path) -> None:
    ran = run("train", config.name, "--print-config")  # the working directory is its folder
    assert ran.code == 0
    assert any(line.split() == ["plan.costs", '"estimate"', "tiny.toml:5"] for line in ran.out.splitlines())


@pytest.mark.parametrize("text", ["3", "steps=0", "steps=x", "step=3", "steps="])
def test_a_bad_number_of_profiled_steps(run: Run, config: Path, text: str) -> None:
    ran = run("train", config, "--torch-profiler", text)
    assert ran.code == 2
    assert f"--torch-profiler: is '{text}'. Write steps=3" in ran.err


def test_an_unknown_variable_is_refused_with_the_nearest_name(config: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config(config, environment={"GRAPHPIPE__TRAIN__STPES": "3"})
    assert "environment GRAPHPIPE__TRAIN__STPES: unknown key 'train.stpes'. Did you mean 'steps'?" in str(caught.value)
    assert read_config(config, environment={"GRAPHPIPE_DEBUG": "1"}).train.steps == 6
