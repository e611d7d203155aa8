"""A step of the check leaves everything that modules hold as it was."""

from collections import OrderedDict
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from graphpipe.equivalence.steps.own_values import own_values


class Fixed(OrderedDict[str, Any]):
    """A dictionary that refuses to be changed, as the configurations of diffusers' models do."""

    def update(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("fixed")

    clear = update  # type: ignore[assignment]


class Model(nn.Module):
    """A model with settings that nobody changes, and a table that its forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.settings = Fixed(width=2)
        self.seen: dict[str, Any] = {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.seen |= {"calls": self.seen["calls"] + 1, "last": x}
        return self.layer(x)


def test_what_a_forward_changes_is_undone_and_dictionaries_that_refuse_changes_stay() -> None:
    # Every model of diffusers ended the check: it emptied and filled again each dictionary, and theirs refuse that.
    model = Model()
    seen, weight = model.seen, model.layer.weight.detach().clone()
    with own_values([model], [], double=True):
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        with torch.no_grad():
            model.layer.weight.add_(1.0)
    assert model.settings == {"width": 2}
    assert model.seen is seen
    assert seen == {"calls": 0}
    assert torch.equal(model.layer.weight, weight)
    assert model.layer.weight.grad is None
