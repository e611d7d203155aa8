"""The blocks of the zoo's models: each block is one operator of the captured graph."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


class AttentionChange(nn.Module):
    """Self-attention with the norm before it, without a residual: (n, length, hidden) -> the same."""

    def __init__(self, hidden: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm = nn.LayerNorm(hidden)
        self.project_in = nn.Linear(hidden, 3 * hidden)
        self.project_out = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor, /) -> Tensor:
        query, key, value = self.project_in(self.norm(states)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=self.causal
        )
        return self.project_out(mixed.transpose(1, 2).flatten(-2))


class Attention(AttentionChange):
    """Self-attention with the norm before it and the residual around it: (n, length, hidden) -> the same."""

    def forward(self, states: Tensor, /) -> Tensor:
        return states + super().forward(states)


class FeedForwardChange(nn.Module):
    """Two linear layers with the norm before them, without a residual: (n, length, hidden) -> the same."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, width)
        self.narrow = nn.Linear(width, hidden)

    def forward(self, states: Tensor, /) -> Tensor:
        return self.narrow(functional.gelu(self.widen(self.norm(states))))


class FeedForward(FeedForwardChange):
    """Two linear layers with the norm before them and the residual around them: (n, length, hidden) -> the same."""

    def forward(self, states: Tensor, /) -> Tensor:
        return states + super().forward(states)


class Dense(nn.Module):
    """A linear layer and a ReLU: (n, ..., width_in) -> (n, ..., width_out)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, states: Tensor) -> Tensor:
        return functional.relu(self.linear(states))


class Embedding(nn.Module):
    """Tokens and their positions: (n, length) int64 -> (n, length, hidden)."""

    def __init__(self, vocabulary: int, length: int, hidden: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(length, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(places)


class Concat(nn.Module):
    """Concatenates the branches along the last dimension."""

    def forward(self, *branches: Tensor) -> Tensor:
        return torch.cat(branches, dim=-1)


class PooledHead(nn.Module):
    """The mean over positions, then a linear layer: (n, length, width_in) -> (n, width_out)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(states.mean(dim=1))


def chain(modules: Mapping[str, nn.Module]) -> nn.Sequential:
    """Return the named modules as a sequence."""
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence


def transformer_layer(hidden: int, heads: int, width: int, *, causal: bool = False) -> nn.Sequential:
    """Return attention, then feed-forward, as two submodules, so that a plan can cut between them."""
    return chain({"attention": Attention(hidden, heads, causal=causal), "feed_forward": FeedForward(hidden, width)})


def dense_stack(width_in: int, width: int, layers: int) -> nn.Sequential:
    """Return `layers` dense layers of `width`."""
    widths = [width_in] + [width] * (layers - 1)
    return chain({f"layer{index}": Dense(before, width) for index, before in enumerate(widths)})
