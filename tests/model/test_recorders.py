"""Hooks that note what submodules return are seen by the trace, once for each call."""

import copy
from typing import Any

import pytest
import torch
from run_plans import captured_plan
from torch import Tensor, nn

from graphpipe.model import recorders as room
from graphpipe.model.capture.capture import capture
from graphpipe.model.recorders import apart, recorders
from graphpipe.run import Pipeline

NOTES: list[Tensor] = []


def note(module: nn.Module, args: Any, result: tuple[Tensor, Tensor]) -> None:
    """Keep the scores."""
    NOTES.append(result[1])


class Layer(nn.Module):
    """Returns its words, and two scores of each word, all words in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.score = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_forward_hook(note)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        return self.word(words), self.score(words.flatten(0, 1))


class Noted(nn.Module):
    """Returns the sums of the scores of all layers, which only hooks see."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.last = nn.Linear(2, 2)

    def forward(self, words: Tensor) -> Tensor:
        NOTES.clear()
        for layer in self.layers:
            words, _ = layer(words)
        scores = torch.stack(NOTES).sum(0)
        return self.last(scores.view(-1, 3, 2))


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return a mean over samples that weighs the words differently."""
    return (scores * targets).square().mean()


def test_scores_that_hooks_note_are_sent_from_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MODULE", __name__)
    torch.manual_seed(0)
    model, words, targets = Noted(), torch.randn(4, 3, 4), torch.randn(4, 3, 2)
    twin = copy.deepcopy(model)
    expected = loss(twin(words), targets)
    expected.backward()
    names = ["layers.0", "layers.1", "layers.2", "last"]
    plan = captured_plan(model, {"words": words}, [((name,), (at,), 2) for at, name in enumerate(names)], 4)
    assert {edge.source for edge in plan.graph.edges if edge.target == "layers.2"} == {"layers.0", "layers.1"}
    pipeline = Pipeline(plan, model, loss)
    assert pipeline.step({"words": words}, targets) == pytest.approx(expected.item())
    for name, gradient in pipeline.gradients().items():
        torch.testing.assert_close(gradient, twin.get_parameter(name).grad, rtol=1e-5, atol=1e-7, msg=name)


def test_a_submodule_that_stays_whole_gets_the_notes_of_its_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """LW-DETR's backbone found no hidden states, and its capture ended with an error about None."""
    monkeypatch.setattr(room, "_MODULE", __name__)
    model = nn.Sequential(Noted(), nn.Linear(2, 2))
    assert capture(model, torch.randn(4, 3, 4), opaque=["0"]).order == ("0", "1")


def test_hooks_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MODULE", __name__)
    model = Noted()
    with apart(model.layers[0]):
        assert recorders(model.layers[0]) == []
        assert recorders(model.layers[1]) == [note]
    assert recorders(model.layers[0]) == [note]
