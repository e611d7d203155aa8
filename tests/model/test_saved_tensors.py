"""Handlers of saved tensors: nested ones add up, and nothing else in the package installs torch's hooks."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import graphpipe
from graphpipe.model.saved_tensors import SavedTensor, handle_saved_tensors

HOOKS = ("saved_tensors_hooks", "saved_tensors_default_hooks", "save_on_cpu")


@dataclass
class Noted:
    """Notes what it sees under its name."""

    name: str
    calls: list[str] = field(default_factory=list[str])

    def on_save(self, saved: SavedTensor) -> None:
        self.calls.append(f"{self.name} saves")

    def on_read(self, saved: SavedTensor) -> None:
        self.calls.append(f"{self.name} reads")


@dataclass
class Elsewhere:
    """Keeps the tensors outside of the graph until they are read."""

    tensors: dict[SavedTensor, Tensor] = field(default_factory=dict[SavedTensor, Tensor])

    def on_save(self, saved: SavedTensor) -> None:
        assert saved.tensor is not None
        self.tensors[saved], saved.tensor = saved.tensor, None

    def on_read(self, saved: SavedTensor) -> None:
        saved.tensor = self.tensors.pop(saved)


def test_nested_handlers_see_every_tensor() -> None:
    outer = Noted("outer")
    inner = Noted("inner", outer.calls)
    x = torch.tensor(2.0, requires_grad=True)
    with handle_saved_tensors(outer):
        with handle_saved_tensors(inner):
            y = x.exp()
        y = y.sin()
    assert outer.calls == ["outer saves", "inner saves", "outer saves"]
    outer.calls.clear()
    y.backward()
    assert outer.calls == ["outer reads", "inner reads", "outer reads"]


def test_an_outer_handler_finds_what_an_inner_one_brought_back() -> None:
    found: list[Tensor | None] = []

    class Looking(Noted):
        def on_read(self, saved: SavedTensor) -> None:
            found.append(saved.tensor)

    elsewhere, x = Elsewhere(), torch.tensor(2.0, requires_grad=True)
    with handle_saved_tensors(Looking("outer")), handle_saved_tensors(elsewhere):
        y = x.exp()
    assert len(elsewhere.tensors) == 1
    y.backward()
    assert x.grad is not None
    assert found == [y] == [x.grad]


def test_only_one_module_installs_hooks() -> None:
    package = Path(graphpipe.__file__).parent
    found = {path for path in package.rglob("*.py") if any(name in path.read_text("utf-8") for name in HOOKS)}
    watching = package / "model" / "hidden" / "watched_tensors.py"  # sees those of a user
    assert found == {package / "model" / "saved_tensors.py", watching}
