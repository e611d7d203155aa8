"""A language model with block attention residuals: every layer attends over the outputs of all earlier blocks.

    tokens -> embedding -+-> block 0 -+-> block 1 -+-> ... -> head
                         |            |            |           ^
                         +------------+------------+-> all later blocks and the head

Kimi Team 2026 (arXiv 2603.15031), the block variant. The embedding is the first source, and each block is one more.
Inside a block the changes of its layers (attention or feed-forward) are summed. A layer does not read the sum of
everything before it, but an average over depth: of the embedding, the finished blocks and the sum of its own block so
far. The weights are a softmax over sources, per token, of a learnt query times the source after a norm. Queries begin
as zero, which gives the mean. The head averages over all sources in the same way.

The paper finds that about 8 blocks give most of the gain. Chosen by us: dense layers of the widths of GPT-2 medium, in
place of the paper's mixture of experts and linear attention.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model.zoo.blocks import AttentionChange, Embedding, FeedForwardChange
from graphpipe.model.zoo.synthetic_tasks import arithmetic_sequences
from graphpipe.model.zoo.zoo_model import ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionResidualsShape:
    """Sizes of the language model."""

    blocks: int = 8
    layers: int = multiple_of("blocks", 16)
    """Number of pairs of attention and feed-forward, in all blocks together."""
    sequence: int = 1024
    hidden: int = multiple_of("heads", 1024)
    heads: int = 16
    feed_forward: int = 4096
    vocabulary: int = 50257


PAPER = AttentionResidualsShape()
SMALL = AttentionResidualsShape(
    blocks=4, layers=4, sequence=32, hidden=64, heads=4, feed_forward=256, vocabulary=32
)  # fmt: skip


class DepthAverage(nn.Module):
    """The average of states from several depths, by softmax attention: k times (n, length, hidden) -> the same."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.Parameter(torch.ones(hidden))  # Of its own, so that a layer around it stays one operator.

    def forward(self, *sources: Tensor) -> Tensor:
        states = torch.stack(sources)
        keys = functional.rms_norm(states, self.norm.shape, self.norm)
        weights = torch.softmax(keys @ self.query, dim=0)
        return (weights.unsqueeze(-1) * states).sum(dim=0)


class DepthAttention(AttentionChange):
    """Causal attention on the average over depth, added to the sum of its block.

    The last source is the sum of its block so far, unless the layer is the first of its block.
    """

    def __init__(self, hidden: int, heads: int, *, first: bool) -> None:
        super().__init__(hidden, heads, causal=True)
        self.first = first
        self.depth = DepthAverage(hidden)

    def forward(self, *sources: Tensor) -> Tensor:
        change = super().forward(self.depth(*sources))
        return change if self.first else sources[-1] + change


class DepthFeedForward(FeedForwardChange):
    """Two linear layers on the average over depth, added to the sum of its block, which is the last source."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__(hidden, width)
        self.depth = DepthAverage(hidden)

    def forward(self, *sources: Tensor) -> Tensor:
        return sources[-1] + super().forward(self.depth(*sources))


class DepthHead(nn.Module):
    """Logits of the average over depth: k times (n, length, hidden) -> (n, length, vocabulary)."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.depth = DepthAverage(hidden)
        self.norm = nn.LayerNorm(hidden)
        self.vocabulary = nn.Linear(hidden, vocabulary)

    def forward(self, *sources: Tensor) -> Tensor:
        return self.vocabulary(self.norm(self.depth(*sources)))


class AttentionResiduals(nn.Module):
    """Next-token logits: (n, length) int64 -> (n, length, vocabulary)."""

    def __init__(self, shape: AttentionResidualsShape) -> None:
        super().__init__()
        self.embedding = Embedding(shape.vocabulary, shape.sequence, shape.hidden)
        self.blocks = nn.ModuleList(_block(shape) for _ in range(shape.blocks))
        self.head = DepthHead(shape.hidden, shape.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        sources = [self.embedding(tokens)]
        for block in self.blocks:
            within: list[Tensor] = []
            assert isinstance(block, nn.ModuleList)
            for layer in block:
                within = [layer(*sources, *within)]
            sources += within
        return self.head(*sources)


def build(shape: AttentionResidualsShape, device: str) -> ZooModel:
    """Return the model; its input is tokens (n, sequence) int64, the output (n, sequence, vocabulary)."""
    with torch.device(device):
        module = AttentionResiduals(shape)
    return assemble(module, _next_token_loss, arithmetic_sequences(shape.vocabulary, shape.sequence), device)


def _block(shape: AttentionResidualsShape) -> nn.ModuleList:
    layers: list[nn.Module] = []
    for index in range(shape.layers // shape.blocks):
        layers.append(DepthAttention(shape.hidden, shape.heads, first=index == 0))
        layers.append(DepthFeedForward(shape.hidden, shape.feed_forward))
    return nn.ModuleList(layers)


def _next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
