"""Image and text towers with a contrastive head over the whole mini-batch, in the manner of CLIP.

    pixels -> image: patches, (attention, feed-forward) x layers, projection -+-> head: similarity of every image
    tokens -> text: embedding, (attention, feed-forward) x layers, projection -+         with every text

Radford et al. 2021, ViT-B/32: 12 layers each, image hidden 768 with 12 heads on 32 x 32 patches of 224 x 224 pixels,
text hidden 512 with 8 heads on 77 tokens. Simplified by us: positions averaged in place of a class token, no
causal mask in the text tower.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo.blocks import Embedding, PooledHead, chain, transformer_layer
from graphpipe.model.zoo.synthetic_tasks import patterns
from graphpipe.model.zoo.zoo_model import Batch, ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTowerShape:
    """Sizes of the two towers."""

    layers: int = 12
    pixels: int = multiple_of("patch", 224)
    patch: int = 32
    image_hidden: int = multiple_of("image_heads", 768)
    image_heads: int = 12
    vocabulary: int = 49408
    sequence: int = 77
    text_hidden: int = multiple_of("text_heads", 512)
    text_heads: int = 8
    embedding: int = 512


PAPER = TwoTowerShape()
SMALL = TwoTowerShape(
    layers=2, pixels=16, patch=4, image_hidden=64, image_heads=4, vocabulary=64, sequence=16, text_hidden=64,
    text_heads=4, embedding=32,
)  # fmt: skip


class Patches(nn.Module):
    """Non-overlapping patches and their positions: (n, 3, pixels, pixels) -> (n, patches, hidden)."""

    def __init__(self, pixels: int, patch: int, hidden: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, hidden, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn((pixels // patch) ** 2, hidden))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.project(pixels).flatten(2).transpose(1, 2) + self.position


class ContrastiveHead(nn.Module):
    """Cosine similarity of every image with every text, over a learnt temperature: two (n, width) -> (n, n)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.66))  # 1 / 0.07, the paper's first temperature

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        similarity = functional.normalize(image, dim=-1) @ functional.normalize(text, dim=-1).T
        return self.log_scale.exp() * similarity


def build(shape: TwoTowerShape, device: str) -> ZooModel:
    """Return the model; pixels are (n, 3, pixels, pixels) float32, tokens (n, sequence) int64, the output (n, n)."""
    with torch.device(device):
        image = chain(
            {
                "patches": Patches(shape.pixels, shape.patch, shape.image_hidden),
                **_layers(shape.layers, shape.image_hidden, shape.image_heads),
                "projection": PooledHead(shape.image_hidden, shape.embedding),
            }
        )
        text = chain(
            {
                "embedding": Embedding(shape.vocabulary, shape.sequence, shape.text_hidden),
                **_layers(shape.layers, shape.text_hidden, shape.text_heads),
                "projection": PooledHead(shape.text_hidden, shape.embedding),
            }
        )
        head = ContrastiveHead()
    module = DagModule(
        {"image": image, "text": text, "head": head},
        inputs={"image": ["pixels"], "text": ["tokens"], "head": ["image", "text"]},
        whole_batch=["head"],
        name="two-tower",
    )
    known = patterns(_CLASSES, 3, shape.pixels, shape.pixels)
    return assemble(module, contrastive_loss, partial(_pairs, shape, known), device)


def contrastive_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the symmetric contrastive loss of (n, n) similarities, with pairs of equal labels as positives.

    The targets of a row are 1 divided equally among its positives. The loss is the divergence from these targets, so
    its minimum is 0 for all labels.
    Yang et al. 2022 (UniCL), equations 2-4.
    """
    positives = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    targets = positives / positives.sum(dim=1, keepdim=True)
    both = (functional.log_softmax(logits, dim=1), functional.log_softmax(logits.T, dim=1))
    images, texts = (functional.kl_div(log_shares, targets, reduction="batchmean") for log_shares in both)
    return (images + texts) / 2


_CLASSES = 8


def _layers(layers: int, hidden: int, heads: int) -> dict[str, nn.Module]:
    return {f"layer{index}": transformer_layer(hidden, heads, 4 * hidden) for index in range(layers)}


def _pairs(shape: TwoTowerShape, known: Tensor, generator: Generator, samples: int) -> Batch:
    # An image is the pattern of its label plus noise. A text counts up from the first token of its label.
    labels = torch.randint(_CLASSES, (samples,), generator=generator)
    pixels = known[labels] + torch.randn(samples, 3, shape.pixels, shape.pixels, generator=generator)
    first = labels * (shape.vocabulary // _CLASSES)
    tokens = (first.unsqueeze(1) + torch.arange(shape.sequence)) % shape.vocabulary
    return {"pixels": pixels, "tokens": tokens}, labels
