"""Handlers of saved tensors: nested ones add up, and nothing else in the package installs torch's hooks."""

import weakref
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


def test_what_a_dropped_graph_saved_is_freed() -> None:
    """`exp` saves what it returns. The graph kept it, and it kept the graph: each profile of a model left its attention
    layers in memory, 3.4 GB on an H100, and so did the first backward of a training that was split."""
    seen: list[weakref.ref[SavedTensor]] = []

    class Looking(Noted):
        def on_save(self, saved: SavedTensor) -> None:
            seen.append(weakref.ref(saved))

    x = torch.tensor(2.0, requires_grad=True)
    with handle_saved_tensors(Looking("looking")):
        y = x.exp().sin()
    assert [each() is not None for each in seen] == [True, True]
    del y
    assert [each() for each in seen] == [None, None]


def test_second_derivatives_pass_through_what_was_saved() -> None:
    x = torch.tensor(0.5, requires_grad=True)
    with handle_saved_tensors(Noted("")):
        y = x.exp().exp()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    torch.testing.assert_close(second, y.detach() * (x.exp().square() + x.exp()).detach())
