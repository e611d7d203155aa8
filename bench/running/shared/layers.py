"""A language model like Llama, which torch's own tensor parallelism can share: no weight holds several layers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of the model."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    key_value_heads: int = 4
    feed_forward: int = 512
    vocabulary: int = 512
    length: int = 64


class Attention(nn.Module):
    """Attention whose keys and values several heads share: (n, length, hidden) -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.hidden // shape.heads
        self.norm = nn.RMSNorm(shape.hidden)
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, with what the heads found."""
        normed = self.norm(values)
        query, key, value = (
            each(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return values + self.o_proj(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """A gated feed-forward: (n, length, hidden) -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden)
        self.gate_proj = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, with what the layers found."""
        normed = self.norm(values)
        return values + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Language(nn.Sequential):
    """An embedding, layers of two parts each, a norm and a head: tokens (n, length) -> logits."""

    def __init__(self, shape: Shape) -> None:
        parts: list[nn.Module] = [nn.Embedding(shape.vocabulary, shape.hidden)]
        for _ in range(shape.layers):
            parts += [Attention(shape), FeedForward(shape)]
        super().__init__(*parts, nn.RMSNorm(shape.hidden), nn.Linear(shape.hidden, shape.vocabulary, bias=False))


def model(shape: Shape) -> Language:
    """Return the model, with the same weights each time."""
    torch.manual_seed(0)
    return Language(shape)


def batch(shape: Shape, samples: int) -> tuple[Tensor, Tensor]:
    """Return tokens (samples, length) and the next tokens."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(shape.vocabulary, (samples, shape.length + 1), generator=draw)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
