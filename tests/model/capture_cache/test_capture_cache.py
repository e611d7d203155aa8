"""A model that did not change is captured once; every change of what its graph can depend on captures it again."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import graphpipe as gp
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_cache import capture_cache, user_modules
from graphpipe.model.capture_cache.capture_cache import cached_capture, cached_capture_for
from graphpipe.model.capture_cache.model_key import model_key
from graphpipe.model.inputs import describe, name_inputs, read_layout
from graphpipe.model.split.split import split
from graphpipe.training.task.user_function import call_for_model

MODEL = """
import torch
from torch import nn
import helper

DEPTH = 1

class Branch(nn.Module):
    width = 8

    def __init__(self, act):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(DEPTH))
        self.act = act
        self.scale = 2.0

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x)) * self.scale
        return helper.end(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Branch(torch.relu), Branch(torch.relu)
        self.head = nn.Linear(16, 4)

    def forward(self, x, y):
        return self.head(torch.cat([self.a(x), self.b(y)], dim=1))

def model():
    return Model(), {"x": torch.randn(2, 8), "y": torch.randn(2, 8)}
"""
HELPER = """
def end(x):
    return x + 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of the user's; only files in it are the user's."""
    (tmp_path / "own.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text(HELPER)
    inside = lambda file: file is not None and Path(file).is_relative_to(tmp_path)  # noqa: E731
    monkeypatch.setattr("graphpipe.model.capture_cache.user_modules._is_users", inside)
    return tmp_path


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, word: str = "own.py:model"):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "helper", raising=False)
    model = call_for_model(word, folder)
    return model.module, model.example_inputs


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """The captures that were made."""
    made: list[Captured] = []
    original = capture_cache.capture_nodes

    def counted(*arguments: object) -> Captured:
        made.append(original(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(capture_cache, "capture_nodes", counted)
    return made


def test_the_second_capture_is_read_and_runs_like_the_first(folder, captures, monkeypatch) -> None:
    first = cached_capture(*load(folder, monkeypatch), folder / "cache")
    module, inputs = load(folder, monkeypatch)  # with other random weights
    # Under torchrun, which sets another one for each run, nothing was ever read again.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    second = cached_capture(module, inputs, folder / "cache")
    assert len(captures) == 1
    assert second.graph == first.graph == gp.capture(module, inputs)
    assert cached_capture_for(module, inputs, first.graph, folder / "cache").graph == first.graph
    cluster = gp.Cluster.preset("local:2")
    stages = [gp.HandStage(ops=first.graph.order, devices=(0,), micro_batch=2)]
    plan = gp.hand_plan(first.graph, gp.estimate(first.graph, cluster), cluster, batch_size=2, stages=stages)
    (program,) = split(module, plan, second)
    assert torch.equal(program(inputs)[1], module(**inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [nn.LSTM])
def test_a_recurrent_model_is_kept_and_another_depth_is_another_model(
    kind: Any, folder: Path, captures: list[Captured]
) -> None:
    """Its weak references to its weights put its key in doubt, so that every verb captured it again for 8 seconds."""
    inputs = torch.randn(2, 3, 4)
    for layers, expected in ((1, 1), (1, 1), (2, 2)):
        module = kind(4, 6, num_layers=layers, batch_first=True)
        found = cached_capture(module, inputs, folder / "cache")
        assert len(captures) == expected
        assert found.graph == captures[-1].graph
    tied = kind(4, 6, num_layers=2, batch_first=True)
    tied.bias_hh_l0 = tied.bias_ih_l0
    cached_capture(tied, inputs, folder / "cache")
    assert len(captures) == 3


def test_without_a_folder_nothing_is_kept(folder, captures, monkeypatch) -> None:
    for _ in range(2):
        cached_capture(*load(folder, monkeypatch), None)
    assert len(captures) == 2


def changed(file: str, before: str, after: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert before in text
        (folder / file).write_text(text.replace(before, after))

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(changed("own.py", "self.scale = 2.0", "self.scale = 3.0"), id="a number in the source"),
        pytest.param(changed("helper.py", "x + 1", "x * x"), id="a function that the forward calls"),
        pytest.param(changed("own.py", "DEPTH = 1", "DEPTH = 2"), id="a global value", marks=pytest.mark.slow),
        pytest.param(
            changed("own.py", "return Model()", "return Model().requires_grad_(False)"),
            id="frozen weights",
            marks=pytest.mark.slow,
        ),
        pytest.param(changed("own.py", "torch.relu), B", "torch.tanh), B"), id="a function that a module holds"),
    ],
)
def test_a_change_of_the_source_captures_again(change, folder, captures, monkeypatch) -> None:
    cached_capture(*load(folder, monkeypatch), folder / "cache")
    change(folder)
    module, inputs = load(folder, monkeypatch)
    assert cached_capture(module, inputs, folder / "cache").graph == captures[-1].graph
    assert len(captures) == len([*(folder / "cache" / "captures").iterdir()]) == 2


MADE_BY_DATA = """
from pathlib import Path
import json
import torch
from torch import nn

DATA = json.loads(Path(__file__).with_name("data.json").read_text())

def twice(function):
    return lambda x: function(function(x))

def made(count):
    class Inner(nn.Module):
        def forward(self, x):
            for _ in range(count):
                x = torch.relu(x) + 1
            return x

    return Inner()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = {"power": DATA["held"]}
        self.first, self.inner, self.last = nn.Linear(8, 8), made(DATA["closure"]), nn.Linear(8, 8)
        Model.times = DATA["class"]

    def forward(self, x):
        x = self.inner(self.first(x)) ** self.settings["power"] * self.times
        return self.last(x * DATA["global"])

def model():
    module = Model()
    if DATA["structure"]:
        module.last = nn.Sequential(module.last, nn.Linear(8, 8))
    return module, torch.randn(2, DATA["shape"], 8) if DATA["shape"] else torch.randn(2, 8)
"""
DATA = {"held": 2, "closure": 1, "class": 2, "global": 3, "structure": 0, "shape": 0}


FEW = ("closure", "class", "structure")


@pytest.mark.parametrize(
    "field", [None, *(pytest.param(each, marks=[] if each in FEW else pytest.mark.slow) for each in DATA)]
)
def test_a_change_of_data_that_the_source_reads_captures_again(field, folder, captures, monkeypatch) -> None:
    # The source is the same. What it read is held by the model, its classes, its closures, or the module.
    (folder / "made.py").write_text(MADE_BY_DATA)
    for data in (DATA, DATA | ({field: DATA[field] + 1} if field else {})):
        (folder / "data.json").write_text(__import__("json").dumps(data))
        module, inputs = load(folder, monkeypatch, "made.py:model")
        found = cached_capture(module, inputs, folder / "cache")
        assert found.graph == captures[-1].graph
    assert len(captures) == (2 if field else 1)


@pytest.mark.parametrize(
    "line",
    [
        "import os; os.environ.get('X')",
        "from importlib import import_module",
        "eval('1')",
        "import random; state = random.Random(1)",
        "import threading; lock = threading.Lock()",
        "state = torch.Generator()",
    ],
)
def test_in_doubt_nothing_is_kept(line, folder, captures, monkeypatch) -> None:
    (folder / "own.py").write_text(f"{MODEL}\n{line}\n" + "import_module\n" * ("import_module" in line))
    cached_capture(*load(folder, monkeypatch), folder / "cache")
    assert len(captures) == 1
    assert not (folder / "cache").exists()


def test_a_damaged_entry_is_named_in_one_line_and_made_again(folder, captures, monkeypatch) -> None:
    first = cached_capture(*load(folder, monkeypatch), folder / "cache")
    (entry,) = (folder / "cache" / "captures").iterdir()
    for number, (damage, content) in enumerate(
        [
            ("capture.json", b'{"graphpipe": "capture", "schema_version": 1}'),
            ("capture.json", None),
            ("graph.json", b""),
            ("capture.safetensors", None),
        ],
        start=2,
    ):
        if content is None:
            (entry / damage).unlink()
        else:
            (entry / damage).write_bytes(content)
        with pytest.warns(UserWarning, match="a capture in the cache cannot be used and is made again") as caught:
            assert cached_capture(*load(folder, monkeypatch), folder / "cache").graph == first.graph
        assert "\n" not in str(caught[0].message)
        assert len(captures) == number
        cached_capture(*load(folder, monkeypatch), folder / "cache")
        assert len(captures) == number


def test_an_entry_of_another_graph_is_not_used(folder, captures, monkeypatch) -> None:
    first = cached_capture(*load(folder, monkeypatch), folder / "cache")
    (entry,) = (folder / "cache" / "captures").iterdir()
    op = replace(first.graph.ops[0], parameter_bytes=first.graph.ops[0].parameter_bytes + 4)
    replace(first.graph, ops=(op, *first.graph.ops[1:])).save(entry / "graph.json")
    with pytest.warns(UserWarning, match="belong to different models"):
        assert cached_capture(*load(folder, monkeypatch), folder / "cache").graph == first.graph


def test_the_cache_is_private_and_keeps_the_newest_entries(folder, captures, monkeypatch) -> None:
    before = os.umask(0o077)
    try:
        cached_capture(*load(folder, monkeypatch), folder / "home" / "cache")
    finally:
        os.umask(before)
    made = [folder / "home", *(folder / "home").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in made} == {0}
    monkeypatch.setattr(capture_cache, "MOST_ENTRIES", 2)
    for number in range(3, 6):
        changed("own.py", f"self.scale = {number - 1}.0", f"self.scale = {number}.0")(folder)
        cached_capture(*load(folder, monkeypatch), folder / "home" / "cache")
    assert len([*(folder / "home" / "cache" / "captures").iterdir()]) == 2


def test_a_folder_that_cannot_be_written_does_not_matter(folder, captures, monkeypatch) -> None:
    (folder / "file").write_text("")
    assert cached_capture(*load(folder, monkeypatch), folder / "file" / "cache").graph == captures[0].graph


def test_a_module_is_the_users_wherever_its_link_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, own = tmp_path / "installed", tmp_path / "own"
    for each in (installed / "package", own):
        each.mkdir(parents=True)
        (each / "code.py").touch()
    (installed / "linked.py").symlink_to(own / "code.py")
    (installed / "folder").symlink_to(own)
    monkeypatch.setattr(user_modules, "_INSTALLED", [installed])
    # Its memories of folders and files would outlive this test: tests after it took torch for the user's own.
    monkeypatch.setattr(user_modules, "_is_installed", cache(user_modules._is_installed.__wrapped__))
    monkeypatch.setattr(user_modules, "_is_own", cache(user_modules._is_own.__wrapped__))
    monkeypatch.chdir(own)
    files = {
        "relative": "code.py",
        "link": f"{installed}/linked.py",
        "link to a folder": f"{installed}/folder/code.py",
        "installed": f"{installed}/package/code.py",
        "missing": f"{own}/missing.py",
    }
    for name, file in files.items():
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        module.__file__ = file
    found = {name for name in user_modules.user_modules() if name in files}
    assert found == {"relative", "link", "link to a folder"}


class Caching(nn.Module):
    """Returns more if a cache is asked for, which its configuration does, as those of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, use_cache: bool | None = None) -> torch.Tensor:
        found = self.last(self.first(x))
        return found if use_cache is False else torch.cat([found, self.first(x)], 1)


def test_a_cached_capture_is_the_capture_also_of_a_model_with_a_key_value_cache(tmp_path: Path) -> None:
    """Commands could not capture Llama, because its cache was only switched off by `gp.capture`."""
    module, x = Caching(), torch.randn(2, 4)
    graph = gp.capture(module, x)
    assert graph.origin is not None
    assert dict(graph.origin.arguments) == {"use_cache": False}
    assert cached_capture(module, x, tmp_path).graph == graph
    assert cached_capture_for(module, x, graph, tmp_path).graph == graph
    assert cached_capture(module, x, None).graph == graph
    costs = gp.profile(module, x, gp.Cluster.preset("local:1"), batch_sizes=(2,), cache=None)
    assert {row.op for row in costs.rows} == {*graph.order}


def test_a_number_in_a_buffer_that_is_in_no_checkpoint_is_part_of_the_key(folder, monkeypatch) -> None:
    """A capture knows such a number: codecs hold their strides so, and compute how much to pad with them."""
    module, inputs = load(folder, monkeypatch)
    described = describe(name_inputs(read_layout(module, inputs), inputs))
    keys: list[str | None] = []
    for stride, persistent in ((2, False), (3, False), (2, True), (3, True)):
        module.register_buffer("stride", torch.tensor(stride), persistent=persistent)
        keys.append(model_key(module, described, Origin(method="auto")))
    assert keys[0] is not None
    assert keys[0] != keys[1]
    assert keys[2] == keys[3]
