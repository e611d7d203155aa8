"""Forwards that decide by the values of small tensors in plain attributes, which no training changes."""

import pytest
import torch
from checked_model import checked, cut_everywhere, samples
from torch import Tensor, nn

import graphpipe as gp

pytestmark = pytest.mark.timeout(120)


class Columns(nn.Module):
    """Embeds some columns and keeps others, as TabNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_number = torch.tensor([True, False, True, False])
        self.tables = nn.ModuleList(nn.Embedding(3, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found, tables = list[Tensor](), iter(self.tables)
        for column, is_number in enumerate(self.is_number):
            values = x[:, column]
            found.append(values[:, None] if is_number else next(tables)(values.abs().clamp(max=2).long()))
        return torch.cat(found, 1)


class Table(nn.Module):
    """Some layers on top, of which an attribute chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.columns, self.chosen = Columns(), torch.tensor([1, 0, 1])
        self.layers, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.columns(x)
        for chosen, layer in zip(self.chosen, self.layers, strict=True):
            if chosen > 0:
                hidden = torch.tanh(layer(hidden))
        return self.head(hidden)


@pytest.mark.parametrize("opaque", [[], ["columns"]])
def test_a_forward_decides_by_known_values(opaque: list[str]) -> None:
    # TabNet was refused: the loop over its columns "decides by the values in a tensor".
    model = Table()
    cut = cut_everywhere(model, samples()[0], opaque=opaque)
    tables = () if opaque else ("columns.tables.0", "columns.tables.1")  # a small submodule joins its reader
    assert set(cut.plan.graph.order) == {*tables, "layers.0", "layers.2", "head"}
    found = checked(model, cut)
    assert found.equal, str(found)


class Counting(nn.Module):
    """Changes the values by which it decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.layer(x)) if self.calls[0] > 1 else self.layer(x)


def test_values_that_a_forward_changes_are_not_known() -> None:
    with pytest.raises(gp.InvalidInput, match="decides by the values in a tensor"):
        gp.capture(Counting(), torch.zeros(8, 4))


class Writes(nn.Module):
    """Writes its result into the dict that it is given, as the modules of sentence-transformers do."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        features["pooled"] = features["hidden"] * features["scale"]
        return features


class Pooled(nn.Module):
    """Passes a dict to a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pool, self.head = nn.Linear(4, 4), Writes(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool({"hidden": self.one(x), "scale": x})["pooled"])


def test_a_submodule_may_change_the_dict_that_it_is_given() -> None:
    model = Pooled()
    found = checked(model, cut_everywhere(model, samples()[0], opaque=["pool"]))
    assert found.equal, str(found)
