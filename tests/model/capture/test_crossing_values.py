"""Values without samples, which every reader computes again: each layer stays an operator of its own.

Llama's rotary angles were read by all layers and could not cross, so that its layers became one operator.
"""

import pytest
import torch
from stage_runs import assert_same, assert_same_training, make_plan, run_stages
from torch import Tensor, nn

from graphpipe.model.capture.capture import capture
from graphpipe.model.split.split import split

WORDS, WIDTH, LENGTH, LAYERS = 11, 8, 5, 4


class Rotary(nn.Module):
    """Angles from a buffer; of its argument it reads only dtype and device, as in Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: Tensor
        self.register_buffer("rates", torch.rand(WIDTH), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None] * self.rates
        return angles.cos().to(x.dtype), (angles.sin() + torch.zeros_like(x[:1, :1])).to(device=x.device)


class DynamicRotary(Rotary):
    """Angles that depend on the longest sequence so far, and start again after a short one, as in dynamic RoPE."""

    def __init__(self) -> None:
        super().__init__()
        self.longest: Tensor | int = 2
        self.first_rates = self.rates

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        length = positions.max() + 1
        if length > self.longest:
            self.register_buffer("rates", self.first_rates / length, persistent=False)
            self.longest = length
        if length < 2:
            self.register_buffer("rates", self.first_rates, persistent=False)
        return super().forward(x, positions)


class Layer(nn.Module):
    """Reads a mask and angles that all layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        query = self.query(x) * angles[0] + x * angles[1]
        scores = (query @ x.transpose(1, 2)).masked_fill(mask.flatten(0, -3), -1e9)
        return x + self.out(self.drop(scores.softmax(-1)) @ x)


class Model(nn.Module):
    """Layers after an embedding. Its mask is causal, or also of words that are padding, or has no samples in front."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.rotary = DynamicRotary() if kind == "dynamic" else Rotary()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        steps = torch.arange(words.shape[1], device=words.device)
        mask = steps[None, :, None] < steps[None, None, :]
        if self.kind == "padded":
            mask = mask | (words == 0)[:, None, :]
        elif self.kind == "of values":  # from all words' vectors, with samples in its second dimension
            mask = mask[None] | (x.detach().mean(-1) > 0)[None, :, None, :]
        positions = steps[None] if self.kind in ("causal", "dynamic") else steps.expand(words.shape[0], -1)
        angles = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, mask, angles)
        return self.head(x)


@pytest.mark.parametrize("kind", ["causal", "padded", "of values", "dynamic"])
def test_layers_that_share_values_without_samples_stay_apart(kind: str) -> None:
    module, words = Model(kind), torch.randint(0, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    graph = capture(module, words)
    assert {"embed", *(f"layers.{number}" for number in range(LAYERS)), "head"} <= {op.name for op in graph.ops}
    assert graph.shared == ()  # the mask of values is computed again from what "embed" sends, not from its weights
    assert kind == "of values" or len(graph.edges) == len(graph.ops) - 1  # only vectors of words go to the next layer
    plan = make_plan(graph, [list(graph.order[:2]), list(graph.order[2:4]), list(graph.order[4:])])
    programs = split(module, plan)
    names = {name for program in programs for name in program.parameter_names.values()}
    assert names == {name for name, _ in module.named_parameters()}
    assert_same(run_stages(programs, plan, {"words": words}), module(words))


class Attention(nn.Module):
    """Attention within the forward of a layer; its queries, keys and values are unpacked from one value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        query, key, value = self.qkv(x).view(samples, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(found.transpose(1, 2).reshape(samples, length, width))


def test_unpacked_queries_do_not_repeat_what_was_before_them() -> None:
    # The permuted value begins with 3 instead of samples. Every attention computed all earlier layers again.
    layers = (Attention() for _ in range(LAYERS))
    module = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS))
    words = torch.randint(0, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    graph = capture(module, words, split=[str(1 + number) for number in range(LAYERS)])
    assert graph.shared == ()
    assert sum(len(op.parameters) for op in graph.ops) == len([*module.parameters()])
    assert len(graph.ops) == 2 + 3 * LAYERS
    plan = make_plan(graph, [list(graph.order[:5]), list(graph.order[5:])])
    assert_same(run_stages(split(module, plan), plan, {"input": words}), module(words))


class Routed(nn.Module):
    """Layers whose scores of words are read by experts, together with the rows of words that were scored."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.gates, self.experts = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(2))

    def forward(self, words: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, scores = self.embed(words), list[Tensor]()
        for gate, expert in zip(self.gates, self.experts, strict=True):
            rows = x.view(-1, WIDTH)
            scores.append(gate(rows))
            x = x + expert(rows * scores[-1].sigmoid()).view(x.shape)
        return x, [each.view(words.shape[0], LENGTH, WIDTH) for each in scores]


def test_rows_that_a_gate_and_its_experts_read_are_sent_to_both() -> None:
    """Mixtral with the scores of its routers computed all earlier layers again in every gate and in all experts."""
    module, words = Routed(), torch.randint(0, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    graph = capture(module, words)
    assert {"embed", "gates.0", "experts.0", "gates.1", "experts.1"} <= {*graph.order}
    assert graph.shared == ()
    assert {("embed", "gates.0"), ("embed", "experts.0")} <= {(edge.source, edge.target) for edge in graph.edges}
    plan = make_plan(graph, [[name] for name in graph.order])
    assert_same_training(module, plan, split(module, plan), {"words": words})


class Told(nn.Module):
    """A layer that is told whether words are special, and reads a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.special = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, table: Tensor, any_special: bool) -> Tensor:
        return x + self.linear(x + table) + (self.special(x) if any_special else 0)


class Telling(nn.Module):
    """Layers after an embedding, as in Longformer and, for the table, in Funnel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Told() for _ in range(3))

    def forward(self, words: Tensor) -> Tensor:
        x, any_special = self.embed(words), (words == 0).any().item()
        table = nn.functional.dropout(torch.arange(LENGTH * WIDTH).view(LENGTH, WIDTH) / 99, 0.0)
        for layer in self.layers:
            x = layer(x, table, any_special)
        return x


def test_layers_that_are_told_a_truth_value_in_a_tensor_stay_apart() -> None:
    # Longformer and LED were refused, and the layers of Funnel were one operator.
    module = Telling()
    graph = capture(module, torch.zeros(2, LENGTH, dtype=torch.long), opaque=[f"layers.{n}" for n in range(3)])
    assert [op.name for op in graph.ops] == ["embed", "layers.0", "layers.1", "layers.2"]
    plan = make_plan(graph, [[name] for name in graph.order])
    programs = split(module, plan)
    for words in (torch.zeros(3, LENGTH, dtype=torch.long), torch.ones(3, LENGTH, dtype=torch.long)):
        assert_same(module(words), run_stages(programs, plan, {"words": words}))
