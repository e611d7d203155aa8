"""A language model whose graph is a chain: GPT-2 small, without weight tying and dropout.

    tokens -> embedding -> (causal attention, feed-forward) x layers -> head

Radford et al. 2019: 12 layers, hidden 768, 12 heads, 1024 tokens, vocabulary 50257. On a chain, graph pipelines and
sequential pipelines are the same, so this model is the control.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.model.zoo.blocks import Embedding, chain, transformer_layer
from graphpipe.model.zoo.synthetic_tasks import arithmetic_sequences
from graphpipe.model.zoo.zoo_model import ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GptShape:
    """Sizes of the language model."""

    layers: int = 12
    sequence: int = 1024
    hidden: int = multiple_of("heads", 768)
    heads: int = 12
    feed_forward: int = 3072
    vocabulary: int = 50257


PAPER = GptShape()
SMALL = GptShape(layers=4, sequence=32, hidden=64, heads=4, feed_forward=256, vocabulary=32)


class Gpt(nn.Module):
    """Next-token logits: (n, length) int64 -> (n, length, vocabulary)."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.embedding = Embedding(shape.vocabulary, shape.sequence, shape.hidden)
        self.layers = chain(
            {
                str(index): transformer_layer(shape.hidden, shape.heads, shape.feed_forward, causal=True)
                for index in range(shape.layers)
            }
        )
        self.head = chain({"norm": nn.LayerNorm(shape.hidden), "vocabulary": nn.Linear(shape.hidden, shape.vocabulary)})

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def build(shape: GptShape, device: str) -> ZooModel:
    """Return the model; its input is tokens (n, sequence) int64, the output (n, sequence, vocabulary)."""
    with torch.device(device):
        module = Gpt(shape)
    return assemble(module, _next_token_loss, arithmetic_sequences(shape.vocabulary, shape.sequence), device)


def _next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
