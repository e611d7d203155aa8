"""Small models whose layers ranks can share."""

from collections.abc import Callable

import torch
from channel_blocks import Inverted, Residual
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model.zoo.gpt import Gpt, GptShape

LENGTH, VOCABULARY = 6, 24


def gpt() -> nn.Module:
    """Return the language model of the zoo, very small: packed queries, keys and values, and a head of its own."""
    torch.manual_seed(0)
    return Gpt(GptShape(layers=2, sequence=LENGTH, hidden=8, heads=4, feed_forward=16, vocabulary=VOCABULARY))


class GroupedAttention(nn.Module):
    """Attention, whose keys and values several heads share: (n, length, 16) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.dropout = 4, 0.0
        self.q_proj, self.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k_proj, self.v_proj = nn.Linear(16, 8, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = (
            each(values).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return values + self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    """A gated feed-forward with dropout inside and behind it: (n, length, 16) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside, self.behind = nn.RMSNorm(16), nn.Dropout(0.0), nn.Dropout(0.0)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, values: Tensor) -> Tensor:
        normed = self.norm(values)
        wide = functional.silu(self.gate(normed)) * self.up(normed)
        return values + self.behind(self.down(self.inside(wide)))


class Grouped(nn.Module):
    """A language model with grouped queries, and one weight for the embedding and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.attention, self.feed_forward, self.last = GroupedAttention(), Gated(), Gated()
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.last(self.feed_forward(self.attention(self.embedding(tokens)))))


def grouped() -> nn.Module:
    """Return that model."""
    torch.manual_seed(0)
    return Grouped()


class LowRank(nn.Module):
    """A frozen linear layer beside an adapter of two small ones."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.dropout = layer.requires_grad_(False), nn.Dropout(0.0)
        self.down = nn.Linear(layer.in_features, 3, bias=False)
        self.up = nn.Linear(3, layer.out_features, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values) + 2.0 * self.up(self.down(self.dropout(values)))


def adapted() -> nn.Module:
    """Return the model with grouped queries, frozen but for norms and adapters beside most of its linear layers."""
    model = grouped().requires_grad_(False)
    for part in [*model.modules()]:
        for name in ("q_proj", "v_proj", "o_proj", "gate", "down"):
            if isinstance(layer := getattr(part, name, None), nn.Linear):
                setattr(part, name, LowRank(layer))
        if isinstance(part, nn.RMSNorm):
            part.requires_grad_()
    return model


class Convolved(nn.Module):
    """A language model whose words are channels of small images."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.residual, self.inverted = nn.Embedding(VOCABULARY, 16), Residual(LENGTH), Inverted(LENGTH)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        images = self.embedding(tokens).unflatten(-1, (4, 4))
        return self.head(self.inverted(self.residual(images)).flatten(-2))


def convolved() -> nn.Module:
    """Return that model."""
    torch.manual_seed(0)
    return Convolved()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "grouped": grouped,
    "adapted": adapted,
    "convolved": convolved,
}
OPAQUE = {"adapted": ("attention", "feed_forward", "last"), "convolved": ("residual", "inverted")}
"""Submodules that are kept whole, because ranks share several layers of each."""
