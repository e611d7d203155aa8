"""Which layers ranks can share is found in the model, tried, and noted in its graph."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Exchanges, Graph, OpShards
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.shards.with_shards import captured_with_shards
from graphpipe.model.zoo.blocks import FeedForward
from graphpipe.model.zoo.gpt import Gpt, GptShape

HIDDEN, WIDE, LENGTH, WORDS = 8, 16, 6, 24


def gpt(words: int = WORDS) -> nn.Module:
    """Return a small language model."""
    return Gpt(GptShape(layers=1, sequence=LENGTH, hidden=HIDDEN, heads=4, feed_forward=WIDE, vocabulary=words))


@cache
def shared_gpt() -> gp.Graph:
    """Return the graph of the language model with its layouts."""
    return gp.with_shards(captured_gpt(), gpt())


@cache
def captured_gpt() -> gp.Graph:
    """Return its graph without them."""
    return gp.capture(gpt(), TOKENS)


def shards_of(model: nn.Module, inputs: Any, styles: Any = None) -> dict[str, OpShards]:
    """Return the layouts of a model by operator."""
    graph = gp.with_shards(gp.capture(model, inputs), model, styles)
    return {op.name: op.shards for op in graph.ops if op.shards is not None}


def styles_of(shards: OpShards) -> dict[str, str]:
    """Return the styles by submodule, without the path before the last two names."""
    return {each.submodule: each.style for each in shards.submodules}


TOKENS = torch.zeros(2, LENGTH, dtype=torch.long)
VALUES = torch.zeros(2, LENGTH, HIDDEN)


def test_a_language_model_is_shared_by_heads_columns_rows_and_words() -> None:
    found = {op.name: op.shards for op in shared_gpt().ops if op.shards is not None}
    assert {name: (each.most, styles_of(each)) for name, each in found.items()} == {
        "embedding": (WORDS, {"embedding.token": "vocabulary-rows"}),
        "layers.0.attention": (
            4,
            {
                "layers.0.attention": "heads",
                "layers.0.attention.project_in": "column",
                "layers.0.attention.project_out": "row",
            },
        ),
        "layers.0.feed_forward": (
            WIDE,
            {"layers.0.feed_forward.widen": "column", "layers.0.feed_forward.narrow": "row"},
        ),
        "head.vocabulary": (WORDS, {"head.vocabulary": "vocabulary-columns"}),
    }
    attention = found["layers.0.attention"]
    assert attention.parameters == (
        ("layers.0.attention.project_in.bias", 0),
        ("layers.0.attention.project_in.weight", 0),
        ("layers.0.attention.project_out.weight", 1),
    )
    assert attention.parameter_bytes == 4 * (3 * HIDDEN * HIDDEN + 3 * HIDDEN + HIDDEN * HIDDEN)


def test_work_and_sums_are_those_of_megatron() -> None:
    found = shared_gpt()
    values = 4.0 * LENGTH * HIDDEN
    for name in ("layers.0.attention", "layers.0.feed_forward"):
        op, shards = found[name], found[name].shards
        assert shards is not None
        figures = shards.figures
        assert figures.flops_per_sample == pytest.approx(op.work.flops_per_sample)
        assert figures.forward == figures.backward == Exchanges(reductions=1, bytes_per_sample=values)
        assert 0 < figures.saved_bytes_per_sample < op.work.saved_bytes_per_sample
    widened = found["layers.0.feed_forward"].shards
    assert widened is not None
    assert widened.figures.saved_bytes_per_sample == 4.0 * LENGTH * WIDE * 2  # before and behind the activation
    head = found["head.vocabulary"].shards
    assert head is not None
    gather = Exchanges(reductions=0.5, bytes_per_sample=4.0 * LENGTH * WORDS / 2)
    assert head.figures.forward == gather  # half of what a sum moves


def test_layers_that_read_the_same_values_sum_one_gradient() -> None:
    # The graph keeps views of what enters the layers. Queries, keys and values once summed a gradient each.
    (found,) = shards_of(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), NormedHeads(whole=False)), VALUES).values()
    assert found.figures.backward == Exchanges(reductions=1, bytes_per_sample=4.0 * LENGTH * HIDDEN)


def test_a_graph_keeps_its_fingerprint_and_its_file_holds_the_layouts(tmp_path: Any) -> None:
    found = shared_gpt()
    assert found.fingerprint == captured_gpt().fingerprint
    found.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == found


@pytest.mark.parametrize(("words", "most"), [(25, None), (1025, 1024)])
def test_parts_of_a_large_vocabulary_may_differ_by_one(words: int, most: int | None) -> None:
    found = shards_of(gpt(words), TOKENS).get("embedding")
    assert (found and found.most) == most


class NormedHeads(nn.Module):
    """Attention whose queries are normed over all heads: without a weight, a part would be normed otherwise."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.head_dim, self.whole = 2, whole
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        query = self.q_proj(values)
        query = functional.layer_norm(query, query.shape[-1:]) if self.whole else query
        query, key, value = (
            each.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (query, self.k_proj(values), self.v_proj(values))
        )
        return self.o_proj(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2))


def test_what_would_compute_something_else_stays_whole() -> None:
    for whole in (False, True):
        found = shards_of(nn.Sequential(NormedHeads(whole), FeedForward(HIDDEN, WIDE)), VALUES)
        assert any("widen" in path for each in found.values() for path in styles_of(each))
        assert any("q_proj" in path for each in found.values() for path in styles_of(each)) != whole


class TiedByGlue(nn.Module):
    """A language model whose forward multiplies with the weight of its embedding itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.embedding(tokens), self.embedding.weight)


def test_a_weight_that_glue_reads_stays_whole() -> None:
    assert shards_of(TiedByGlue(), TOKENS) == {}


class Parted(nn.Module):
    """A block with attention and linear layers of its own, which are operators unless it is kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = NormedHeads(whole=False)
        self.up, self.down = nn.Linear(HIDDEN, WIDE), nn.Linear(WIDE, HIDDEN)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.down(functional.gelu(self.up(self.attention(values))))


def test_layers_that_were_operators_of_their_own_are_put_together() -> None:
    model = nn.Sequential(Parted(), Parted())
    captured = capture_nodes(model, VALUES)
    with pytest.warns(UserWarning, match="the linear layers of '0' and 1 others are separate operators"):
        assert {*shards_of(model, VALUES)} == {"0.attention", "1.attention"}
    found = captured_with_shards(captured, model).graph
    assert {op.name: len(op.shards.submodules) for op in found.ops if op.shards} == {"0": 7, "1": 7}


class Hand(nn.Module):
    """Two layers with something in between that is not known to be elementwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(HIDDEN, WIDE), nn.Linear(WIDE, HIDDEN)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(torch.special.erf(self.first(values)))


class Held(nn.Module):
    """Holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Hand(), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.block(values))


@pytest.mark.parametrize(
    "styles",
    [
        {"*.first": "column", "*.second": "row"},
        {"*.first": "colwise", "*.second": "rowwise"},
        {"block.first": ColwiseParallel(), "block.second": RowwiseParallel()},
    ],
    ids=["own names", "transformers", "torch"],
)
def test_styles_by_hand(styles: dict[str, Any]) -> None:
    assert shards_of(Held(), VALUES) == {}
    (found,) = shards_of(Held(), VALUES, styles).values()
    assert styles_of(found) == {"block.first": "column", "block.second": "row"}


def test_layers_are_left_whole_by_hand() -> None:
    found = gp.with_shards(captured_gpt(), gpt(), {"layers*": "copied"})
    assert {op.name for op in found.ops if op.shards} == {"embedding", "head.vocabulary"}


@pytest.mark.parametrize(
    ("styles", "said"),
    [
        ({"layer.0": "column"}, "matches no submodule"),
        ({"layers.0.attention": "column"}, "does not fit Attention"),
        ({"head.vocabulary": "colum"}, "unknown style 'colum'"),
    ],
)
def test_styles_that_cannot_be(styles: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        gp.with_shards(captured_gpt(), gpt(), styles)


class Siblings(nn.Module):
    """Reads two texts of different lengths with one table of words and one feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, HIDDEN), FeedForward(HIDDEN, WIDE)

    def forward(self, question: Tensor, answer: Tensor) -> Tensor:
        return self.mix(self.words(question)).mean(1) - self.mix(self.words(answer)).mean(1)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_submodule_that_is_called_twice_is_shared_in_both_calls(*, sequence_parallel: bool) -> None:
    # The second call once found the part that stood for the submodule, and failed for what the part does not have.
    texts = {"question": torch.zeros(2, LENGTH, dtype=torch.long), "answer": torch.zeros(2, 2 * LENGTH).long()}
    model = Siblings()
    graph = gp.with_shards(gp.capture(model, texts), model, sequence_parallel=sequence_parallel)
    shared = {op.name: op.shards for op in graph.ops if op.shards is not None}
    forwards = {name: each.figures.forward for name, each in shared.items()}
    sums = {name: (each.reductions, each.bytes_per_sample) for name, each in forwards.items()}
    value = 4.0 * LENGTH * HIDDEN  # the second text is twice as long, and its words are looked up in the operator
    assert sums == {"words": (1, value), "mix": (1, value), "mix#2": (2, 2 * value + 2 * value)}
