"""Linear layers beside low-rank adapters are shared as the linear layers are."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.shards.adapter_trial import can_be_divided
from graphpipe.model.shards.layers.adapted import adapted_of
from graphpipe.model.shards.with_shards import captured_with_shards

RANK, LENGTH = 2, 6


class Layers(nn.Module):
    """Adapters of two linear layers."""

    def __init__(self, inputs: int, outputs: int, *, curved: bool = False) -> None:
        super().__init__()
        self.base, self.curved = nn.Linear(inputs, outputs), curved
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        low = self.down(values)
        return self.base(values) + self.up(functional.relu(low) if self.curved else low)


class Matrices(nn.Module):
    """Adapters of two matrices, in a submodule of their own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.low = nn.Linear(inputs, outputs), nn.ParameterDict()
        self.low["a"], self.low["b"] = nn.Parameter(torch.zeros(inputs, RANK)), nn.Parameter(torch.zeros(RANK, outputs))

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(values) + 2.0 * (values @ self.low["a"] @ self.low["b"])


class Inherited(nn.Linear):
    """A linear layer that has an adapter itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_a, self.lora_b = nn.Parameter(torch.zeros(RANK, inputs)), nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias) + input @ self.lora_a.T @ self.lora_b.T


class Chain(nn.Sequential):
    """The same parameters, one behind the other."""

    def __init__(self, inputs: int, outputs: int) -> None:
        small = nn.Linear(outputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)
        super().__init__(nn.Linear(inputs, outputs), *small)


def adapted_by_peft(inputs: int, outputs: int, **options: Any) -> nn.Module:
    """Return a linear layer with an adapter of peft."""
    peft: Any = pytest.importorskip("peft", reason="adapters are tested with peft: pip install peft")
    config = peft.LoraConfig(r=RANK, target_modules=["0"], **options)
    return peft.get_peft_model(nn.Sequential(nn.Linear(inputs, outputs)), config).base_model.model[0]


@pytest.mark.parametrize("outputs", [8, 12])
@pytest.mark.parametrize("kind", [Layers, Matrices, Inherited, adapted_by_peft])
def test_adapters_are_divided_with_their_layer(kind: Callable[[int, int], nn.Module], outputs: int) -> None:
    layer = kind(8, outputs)
    found = adapted_of(layer)
    assert found is not None
    shapes = {name: each.shape for name, each in layer.named_parameters()}
    assert (len(found.columns), len(found.rows)) == (3, 2)  # W, b and B; W and A
    assert {shapes[name][at] for name, at in found.columns.items()} == {outputs}
    assert {shapes[name][at] for name, at in found.rows.items()} == {8}
    assert can_be_divided(layer, "column")
    assert can_be_divided(layer, "row")


@pytest.mark.parametrize(
    ("kind", "styles"),
    [
        (partial(Layers, curved=True), {"column"}),  # what lies between A and B is not linear
        (partial(adapted_by_peft, lora_bias=True), {"column"}),  # a bias would be added by each rank
        (Chain, set()),
    ],
    ids=["curved", "bias", "chain"],
)
def test_other_forwards_are_found_out(kind: Callable[[int, int], nn.Module], styles: set[str]) -> None:
    assert {style for style in ("column", "row") if can_be_divided(kind(8, 8), style)} == styles


class TiedBias(Layers):
    """Has a second name for a bias, as heads of BERT have. It once ended a search with a KeyError."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.bias = self.base.bias


def test_other_parameters_are_no_adapters() -> None:
    assert adapted_of(TiedBias()) is None
    assert adapted_of(nn.MultiheadAttention(8, 2)) is None
    assert adapted_of(adapted_by_peft(8, 8, use_dora=True)) is None  # a magnitude of each column


def test_a_model_with_adapters_is_shared_as_without() -> None:
    kinds: dict[bool, Any] = {True: Layers, False: nn.Linear}
    found: dict[bool, Any] = {}
    for adapted, kind in kinds.items():
        block = nn.Sequential(kind(8, 16), nn.GELU(), kind(16, 8))
        model = nn.Sequential(nn.LayerNorm(8), block)
        values = torch.zeros(2, LENGTH, 8)
        graph = gp.with_shards(gp.capture(model, values, opaque=["1"]), model)
        (found[adapted],) = [op.shards for op in graph.ops if op.shards is not None]
    assert found[True].submodules == found[False].submodules
    one, other = found[True], found[False]
    assert one.parameter_bytes - other.parameter_bytes == 4 * (RANK * 16 + RANK * 16)  # B of the first, A of the second
    assert [each.forward.reductions for each in (other.figures, one.figures)] == [1, 1]
    assert [each.backward.reductions for each in (other.figures, one.figures)] == [1, 1]
    weights = [each.weights.reductions for each in (other.figures, one.figures)]
    assert weights == [0, 2]  # of A of the first, and B of the second


class Residual(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.narrow(functional.gelu(self.widen(values)))


def test_adapters_that_were_operators_are_put_together() -> None:
    peft: Any = pytest.importorskip("peft", reason="adapters are tested with peft: pip install peft")
    model = peft.get_peft_model(
        nn.Sequential(Residual(), Residual()), peft.LoraConfig(r=RANK, target_modules=["widen", "narrow"])
    )
    captured = capture_nodes(model, torch.zeros(2, LENGTH, 8))
    assert "base_model.model.0.widen.lora_A.default" in {op.name for op in captured.graph.ops}
    found = {op.name: op.shards for op in captured_with_shards(captured, model).graph.ops}
    assert {name: each and [one.style for one in each.submodules] for name, each in found.items()} == {
        "base_model.model.0": ["row", "column"],
        "base_model.model.1": ["row", "column"],
    }
