"""Weights that a forward changes: momentum encoders, clipped weights. The change was lost, or ended the process."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from tests.support.programs.plain_training import cut_plan, distance

Update = Callable[[Any, Any], Any]
UPDATES: dict[str, Update] = {
    "lerp": lambda k, q: k.lerp_(q, 0.1),
    "operators": lambda k, q: k.mul_(0.9).add_(q, alpha=0.1),
    "detached": lambda k, q: k.detach().copy_(0.9 * k.detach() + 0.1 * q.detach()),
    "foreach": lambda k, q: torch._foreach_lerp_([k], [q], 0.1),
    "data": lambda k, q: k.data.mul_(0.9).add_(q.data, alpha=0.1),
    "new data": lambda k, q: setattr(k, "data", 0.9 * k.data + 0.1 * q.data),
    "out": lambda k, q: torch.lerp(k, q, 0.1, out=k),
    "index": lambda k, q: k.__setitem__(0, 0.0),
    "trainable": lambda k, q: q.clamp_(-0.1, 0.1),
    "data of a trainable one": lambda k, q: q.data.clamp_(-0.1, 0.1),
}


class Encoders(nn.Module):
    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.key.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                self.update(k, q)
        return torch.cat([self.query(x), self.key(x).detach()], 1)


class InRoot(Encoders):
    def __init__(self, update: Update) -> None:
        super().__init__(update)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


def inside(update: Update) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Encoders(update), nn.Linear(12, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))) for _ in range(3)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "spelling", [pytest.param(each, marks=[pytest.mark.slow] if at % 2 else []) for at, each in enumerate(UPDATES)]
)  # that each is seen, the next test shows
def test_in_the_model_itself_it_is_refused(spelling: str) -> None:
    with pytest.raises(InvalidInput, match=r"the model itself, (changes|replaces) .*name it in `whole_batch`"):
        gp.capture(InRoot(UPDATES[spelling]), batches()[0][0].float())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spelling", UPDATES)
def test_a_submodule_gets_the_whole_mini_batch_or_is_refused(spelling: str) -> None:
    model = inside(UPDATES[spelling])
    with pytest.raises(InvalidInput, match=r"the forward of '1' changes the weight '1\..*whole_batch=\['1'\]"):
        gp.capture(copy.deepcopy(model), batches()[0][0].float())
    assert distance(model, batches(), nn.functional.cross_entropy, whole_batch=["1"]) < 1e-12


@pytest.mark.timeout(60)
def test_a_declared_submodule_too() -> None:
    model = gp.DagModule({"a": nn.Linear(6, 6), "b": Encoders(UPDATES["data"])}, inputs={"a": ["x"], "b": ["a"]})
    for method in ("export", "declared"):
        with pytest.raises(InvalidInput, match=r"the forward of 'b' changes the weight 'b.key.weight'"):
            gp.capture(model, {"x": batches()[0][0].float()}, method=method)


@pytest.mark.timeout(60)
def test_it_is_not_recomputed(tmp_path: Any) -> None:
    """A second forward would change the weight twice. A rank that reads the capture from a file knows it too."""
    model, x = inside(UPDATES["lerp"]), batches()[0][0].float()
    captured = capture_nodes(model, x, gp.capture(model, x, whole_batch=["1"]).origin)  # type: ignore[arg-type]
    save_capture(captured, tmp_path / "capture.json")
    read = load_capture(tmp_path / "capture.json", captured.graph)
    again = cut_plan(captured.graph, batch_size=8, micro_batch=8, cut=0, recompute="full")
    for each in (captured, read):
        with pytest.raises(InvalidInput, match=r"recomputes '1', whose forward changes the weight"):
            gp.Pipeline(again, model, nn.functional.cross_entropy, options=gp.PipelineOptions(captured=each))


@pytest.mark.timeout(60)
def test_data_of_a_buffer_in_the_model_itself() -> None:
    """`buffer.data.mul_()` ended the process by a signal."""

    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)
            self.scale = nn.Buffer(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            self.scale.data.mul_(0.5)
            return self.out(x * self.scale)

    assert distance(Decay(), batches(), nn.functional.cross_entropy, cut=0, micro_batch=8) < 1e-12


class FirstCall(nn.Module):
    """Ties a weight, or chooses a scale by the first samples, when it is called for the first time."""

    def __init__(self, does: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.does, self.called = does, False
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("size", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.does == "tie":
            self.two.weight = self.one.weight
        elif not (self.called if self.does == "attribute" else self.get_buffer("seen")):
            with torch.no_grad():
                (self.get_buffer("size") if "of a buffer" in self.does else self.scale).copy_(x.abs().mean())
            self.called = True
            self.get_buffer("seen").fill_(1.0)
        return self.two(self.one(x).tanh()) * self.scale * self.get_buffer("size")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("does", ["tie", "attribute"])
def test_what_only_the_first_call_changes_is_done_before_the_capture(does: str) -> None:
    """The advice was to give it the whole mini-batch, and then the first step said that a weight was replaced."""
    model = nn.Sequential(nn.Linear(6, 6), FirstCall(does), nn.Linear(6, 3)).double()
    with pytest.raises(InvalidInput, match="If only its first call changes it, run the model once before"):
        gp.capture(copy.deepcopy(model).float(), batches()[0][0].float())
    model(batches()[0][0])
    assert distance(model, batches(), nn.functional.cross_entropy) < 1e-12


@pytest.mark.timeout(60)
@pytest.mark.parametrize("does", ["buffer", "scale of a buffer"])
def test_a_first_call_that_a_buffer_tells_gets_the_whole_mini_batch(does: str) -> None:
    """The advice was to keep it whole, which it was. A flag that is no truth value was taken for one that is set."""
    model = nn.Sequential(nn.Linear(6, 6), FirstCall(does), nn.Linear(6, 3))
    changed = "1.seen" if does != "buffer" else "1.scale"
    with pytest.raises(InvalidInput, match=rf"changes the weight '{changed}'.*whole_batch=\['1'\]"):
        gp.capture(copy.deepcopy(model), batches()[0][0].float())
    assert distance(model, batches(), nn.functional.cross_entropy, cut=2, whole_batch=["1"]) < 1e-12
