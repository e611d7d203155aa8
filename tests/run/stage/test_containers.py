"""Dataclasses between the parts of a model, and as its output: results equal those of plain PyTorch."""

from pathlib import Path

import pytest
import torch
from run_containers import BATCH, Pair, batch, chained, declared, loss, refused, trained
from run_ranks import run_ranks, values
from torch import nn

import graphpipe as gp


def _plain(kind: str) -> tuple[nn.Module, Pair, float]:
    model = declared() if kind == "declared" else chained()
    inputs, targets = batch()
    output = model(**inputs)
    value = loss(output, targets)
    value.backward()
    return model, output, value.item()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["declared", "chained"])
def test_dataclasses_pass_between_stages_and_out(kind: str, ranks: int, tmp_path: Path) -> None:
    # fx cannot carry a dataclass in the arguments of a call, and turns outputs of Hugging Face into plain dicts.
    model, output, value = _plain(kind)
    found = [trained(kind)] if ranks == 1 else values(run_ranks(trained, ranks, tmp_path, kind))
    gradients = {name: each for rank in found for name, each in rank["gradients"].items()}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-7)
    for rank in found:
        assert rank["loss"] == pytest.approx(value, rel=1e-6)
        assert rank["type"] == "Pair"
        torch.testing.assert_close(rank["output"], vars(output), rtol=1e-5, atol=1e-6)
        assert len(rank["output"]["left"]) == BATCH


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_output_of_an_unknown_type_is_refused_on_every_rank(ranks: int, tmp_path: Path) -> None:
    # Once, the first micro-batch was returned as if it were the whole, and other ranks returned nothing.
    for message in [refused()] if ranks == 1 else values(run_ranks(refused, ranks, tmp_path)):
        assert "evaluate: the model returns a Unknown, whose tensors cannot be put together" in message
        assert "Return tensors, tuples, lists, dicts or a dataclass" in message


def test_capturing_a_module_that_returns_an_unknown_type_names_the_remedy() -> None:
    model = nn.Sequential(declared(), nn.Identity())
    assert gp.capture(model, torch.zeros(4, 5)).ops
    with pytest.raises(gp.InvalidInput, match=r"it returns a Odd, .* or a dataclass"):
        gp.capture(Returns(), torch.zeros(4, 5))


class Odd:
    """A type that is not registered with PyTorch."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Returns(nn.Module):
    """Returns an object of an unknown type."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> Odd:
        return Odd(self.top(x))
