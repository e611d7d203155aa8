"""Which nodes of a model compute shards of the sequence is found, tried and measured."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Exchanges, Graph, OpShards
from graphpipe.model.shards.sequence import find_sequence
from graphpipe.model.zoo.blocks import FeedForward
from graphpipe.model.zoo.gpt import Gpt, GptShape

HIDDEN, WIDE, LENGTH, WORDS = 8, 16, 6, 24
VALUE = 4.0 * LENGTH * HIDDEN
"""Bytes of a value between layers, for one sample."""


@cache
def shared_gpt() -> Graph:
    """Return the graph of a small language model with layouts that divide the sequence."""
    torch.manual_seed(0)
    shape = GptShape(layers=1, sequence=LENGTH, hidden=HIDDEN, heads=4, feed_forward=WIDE, vocabulary=WORDS)
    model = Gpt(shape)
    return gp.with_shards(gp.capture(model, torch.zeros(2, LENGTH).long()), model, sequence_parallel=True)


def shards_of(model: nn.Module, length: int = LENGTH) -> dict[str, OpShards]:
    """Return the layouts of the operators that can divide the sequence."""
    graph = gp.with_shards(gp.capture(model, torch.zeros(2, length, HIDDEN)), model, sequence_parallel=True)
    return {op.name: op.shards for op in graph.ops if op.shards is not None and op.shards.sequence is not None}


def test_the_same_bytes_travel_and_less_is_saved() -> None:
    found = shared_gpt()["layers.0.feed_forward"].shards
    assert found is not None
    assert found.sequence is not None
    divided = found.with_sequence(used=True).figures_of(2)
    assert divided.forward == divided.backward == Exchanges(reductions=1, bytes_per_sample=VALUE)  # gather and scatter
    more = divided.saved_bytes_per_sample - found.figures.saved_bytes_per_sample
    norms = 2 * 4.0 * LENGTH * 2  # two numbers for each position: of this norm, and of the one before the head
    assert more == pytest.approx(VALUE + norms)  # what it sends to that norm; what layers read is gathered
    assert found.figures_of(2) == found.figures  # unless a plan asks for it
    assert found.with_sequence(used=True).figures_of(4) == found.figures  # 6 / 4


def test_a_head_gathers_and_returns_whole_logits() -> None:
    found = shared_gpt()["head.vocabulary"].shards
    assert found is not None
    assert found.sequence is not None
    (module,) = found.sequence.submodules
    assert (module.submodule, module.returns_shards, module.summed) == ("head.vocabulary", False, ())


def test_gradients_of_norms_and_biases_behind_rows_are_summed() -> None:
    found = shared_gpt()["layers.0.attention"].shards
    assert found is not None
    assert found.sequence is not None
    summed = {name for module in found.sequence.submodules for name in module.summed}
    own = {"norm.weight", "norm.bias", "project_out.bias"}
    assert {f"layers.0.attention.{name}" for name in own} == summed


class Mean(nn.Module):
    """A feed-forward beside the mean of all positions, which no layer gathers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = FeedForward(HIDDEN, WIDE)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values) + values.mean(1, keepdim=True)


class ByLength(nn.Module):
    """Attention that reads the length of its input before its layers, between a norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(HIDDEN), _ByLength()

    def forward(self, values: Tensor) -> Tensor:
        return values + self.attention(self.norm(values))


class _ByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        shape = (*values.shape[:-1], -1, self.head_dim)
        query, key, value = (
            each(values).view(shape).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(*values.shape[:-1], -1))


@pytest.mark.parametrize(("kind", "entrance"), [(Mean, None), (ByLength, "modules"), (None, "layers")])
def test_where_shards_are_gathered(kind: Any, entrance: str | None) -> None:
    block = FeedForward(HIDDEN, WIDE) if kind is None else kind()
    model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), block, nn.Linear(HIDDEN, 2))  # what it reads has a gradient
    graph = gp.capture(model, torch.zeros(2, LENGTH, HIDDEN), opaque=["1"])
    graph = gp.with_shards(graph, model, sequence_parallel=True)
    found = [op.shards.sequence for op in graph.ops if op.shards is not None and op.shards.sequence is not None]
    entrances = {each.entrance for sequence in found for each in sequence.submodules if each.submodule == "1"}
    assert entrances == ({entrance} if entrance else set())


def test_layers_that_are_too_large_to_try_gather_where_modules_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which forwards take shards is then seen from shapes alone: a norm before the layers of one module does not.
    monkeypatch.setattr(find_sequence, "TRIED", -1.0)
    for kind, divides in ((ByLength, True), (FeedForward, False)):
        block = kind() if kind is ByLength else FeedForward(HIDDEN, WIDE)
        model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), block, nn.Linear(HIDDEN, 2))
        graph = gp.capture(model, torch.zeros(2, LENGTH, HIDDEN), opaque=["1"])
        shards = gp.with_shards(graph, model, sequence_parallel=True)["1"].shards
        assert shards is not None
        assert (shards.sequence is not None) == divides
        if shards.sequence is not None:
            summed = {name for each in shards.sequence.submodules for name in each.summed}
            assert summed == {"1.norm.weight", "1.norm.bias", "1.attention.o_proj.bias"}


def test_an_odd_sequence_stays_whole() -> None:
    model = nn.Sequential(FeedForward(HIDDEN, WIDE), FeedForward(HIDDEN, WIDE))
    assert shards_of(model)
    assert shards_of(model, LENGTH + 1) == {}


class Twice(nn.Module):
    """A block that is called with an even number of positions, then with an odd one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(HIDDEN, HIDDEN), FeedForward(HIDDEN, WIDE)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = self.first(values)
        return self.block(values), self.block(values[:, 1:])


def test_a_block_that_is_also_called_with_an_odd_length_stays_whole() -> None:
    assert shards_of(Twice()) == {}


def test_a_plan_asks_for_layouts_that_divide_the_sequence(tmp_path: Path) -> None:
    graph, cluster = shared_gpt(), gp.Cluster.preset("local:2")
    costs = gp.estimate(graph, cluster)
    plain = gp.plan(graph, costs, cluster, batch_size=4, tensor=2)
    divided = gp.plan(graph, costs, cluster, batch_size=4, tensor=2, sequence_parallel=True)
    assert plain.prediction is not None
    assert divided.prediction is not None
    assert max(divided.prediction.peak_bytes) < max(plain.prediction.peak_bytes)
    divided.save(tmp_path / "plan.json")
    assert gp.Plan.load(tmp_path / "plan.json") == divided


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sequence_parallel": True}, "tensor is 1"),
        ({"sequence_parallel": True, "tensor": 2, "weights": "stash"}, "plans without a flush do not follow it"),
    ],
)
def test_a_plan_that_cannot_divide_the_sequence_is_refused(settings: dict[str, Any], said: str) -> None:
    graph, cluster = shared_gpt(), gp.Cluster.preset("local:2")
    with pytest.raises(InvalidInput, match=said):
        gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=4, **settings)


def test_a_graph_without_such_layouts_is_refused() -> None:
    model = FeedForward(HIDDEN, WIDE)
    graph = gp.with_shards(gp.capture(model, torch.zeros(2, LENGTH, HIDDEN)), model)
    cluster = gp.Cluster.preset("local:2")
    with pytest.raises(InvalidInput, match="no layout of 'FeedForward' divides the sequence"):
        gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=4, tensor=2, sequence_parallel=True)
