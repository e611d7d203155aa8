"""Small ordinary modules over sequences, written as their authors would without knowing GraphPipe."""

import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLES, LENGTH, WIDTH, HEADS, WORDS, LAYERS = 4, 8, 16, 4, 30, 4
Built = tuple[nn.Module, dict[str, Tensor]]


def words() -> Tensor:
    """Return texts."""
    return torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))


def noise(*shape: int) -> Tensor:
    """Return normal numbers, with samples first."""
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


class _Block(nn.Module):
    """Attention with rotary positions and a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Return the states after this block."""
        samples, length, _ = x.shape
        parts = self.qkv(self.first(x)).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key = (_rotated(each, angles) for each in (parts[0], parts[1]))
        found = functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(samples, length, -1))
        inside = self.second(x)
        return x + self.down(functional.silu(self.gate(inside)) * self.up(inside))


class RotaryGpt(nn.Module):
    """A model of language with rotary positions and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next words."""
        x = self.embed(ids)
        steps = torch.arange(WIDTH // HEADS // 2, dtype=x.dtype, device=ids.device)
        angles = torch.arange(ids.shape[1], dtype=x.dtype, device=ids.device)[:, None] / 100**steps
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


class _Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class _SwitchLayer(nn.Module):
    """Sends every word to the one expert that a router chose for it, by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(_Expert() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x).reshape(-1, WIDTH)
        share, chosen = self.router(rows).softmax(-1).max(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (index,) = torch.where(chosen == number)
            out.index_add_(0, index, expert(rows[index]) * share[index, None])
        return x + out.view_as(x)


class Switch(nn.Module):
    """A Switch transformer without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(_SwitchLayer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next words."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LstmLanguageModel(nn.Module):
    """Two LSTM layers over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.second = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next words."""
        found, _ = self.first(self.embed(ids))
        found, _ = self.second(found)
        return self.head(found)


class _Causal(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.one, self.two = (nn.Conv1d(WIDTH, WIDTH, 3, dilation=dilation) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for layer in (self.one, self.two):
            found = torch.relu(layer(functional.pad(found, (2 * self.dilation, 0))))
        return torch.relu(x + found)


class TemporalConvolutions(nn.Module):
    """A TCN: causal convolutions of growing dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, WIDTH, 1)
        self.blocks = nn.ModuleList(_Causal(2**number) for number in range(LAYERS))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, waves: Tensor) -> Tensor:
        """Return two scores for each sequence."""
        x = self.stem(waves)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, :, -1])


class _Recalling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.pair, self.out = (nn.Linear(WIDTH, size) for size in (WIDTH, 2 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        both = torch.cat([memory, x], dim=1)
        query, (key, value) = self.query(x), self.pair(both).chunk(2, dim=-1)
        scores = query @ key.transpose(1, 2) / WIDTH**0.5 + bias
        ahead = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1 + memory.shape[1])
        return self.norm(x + self.out(scores.masked_fill(ahead, float("-inf")).softmax(-1) @ value))


class TransformerWithMemory(nn.Module):
    """Attends to the states of the segment before, as Transformer-XL, and returns its own states without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.bias = nn.Parameter(torch.zeros(4 * LENGTH))
        self.layers = nn.ModuleList(_Recalling() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, memory: Tensor) -> dict[str, Tensor]:
        """Return scores and the memory for the next segment; memory is samples x layers x length x width."""
        x, kept = self.embed(ids), list[Tensor]()
        far = torch.arange(ids.shape[1], device=ids.device)[:, None] + memory.shape[2]
        bias = self.bias[far - torch.arange(ids.shape[1] + memory.shape[2], device=ids.device) + LENGTH]
        for number, layer in enumerate(self.layers):
            kept.append(x.detach())
            x = layer(x, memory[:, number], bias)
        return {"scores": self.head(x), "memory": torch.stack(kept, 1)}


class _ConformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(32, WIDTH))
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.inner, self.wide = nn.LayerNorm(WIDTH), nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.deep, self.normed = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), nn.BatchNorm1d(WIDTH)
        self.narrow, self.last = nn.Conv1d(WIDTH, WIDTH, 1), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.before(x) / 2
        inside = self.norm(x)
        x = x + self.attention(inside, inside, inside, need_weights=False)[0]
        found = functional.glu(self.wide(self.inner(x).transpose(1, 2)), dim=1)
        return self.last(x + self.narrow(functional.silu(self.normed(self.deep(found)))).transpose(1, 2))


class Conformer(nn.Module):
    """Feed-forward, attention and convolution in turn, over spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(_ConformerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, sounds: Tensor) -> Tensor:
        """Return scores of words for each frame."""
        x = self.stem(sounds)
        for block in self.blocks:
            x = block(x)
        return self.head(x).log_softmax(-1)


SEQUENCES: dict[str, tuple[type[nn.Module], dict[str, Tensor]]] = {
    "GPT with rotary positions": (RotaryGpt, {"ids": words()}),
    "Switch, experts by index": (Switch, {"ids": words()}),
    "LSTM language model": (LstmLanguageModel, {"ids": words()}),
    "temporal convolutions": (TemporalConvolutions, {"waves": noise(3, 2 * LENGTH)}),
    "Transformer-XL with memory": (TransformerWithMemory, {"ids": words(), "memory": noise(LAYERS, LENGTH, WIDTH)}),
    "Conformer": (Conformer, {"sounds": noise(LENGTH, 6)}),
}
