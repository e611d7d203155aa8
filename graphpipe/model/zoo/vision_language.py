"""A vision-language model: a vision transformer and a projector, whose outputs a decoder reads before the text.

    pixels -> patches -> (attention, feed-forward) x vision layers -> projector -+
    tokens -> embedding ---------------------------------------------------------+-> (causal attention, feed-forward)
                                                                                     x layers -> head

The form is that of LLaVA (Liu et al., Visual Instruction Tuning, 2023). The vision transformer is ViT-L/14 for 224
pixels (Dosovitskiy et al., 2021), without a class token. As in Qwen2-VL (Wang et al., 2024), the projector joins 2 by 2
patches. The decoder has 1.2 billion parameters, so that encoder and decoder weigh about as much for several images.

Samples have different numbers of images, padded to the largest. `--load vision=1:0.4,2:0.3,3:0.2,4:0.1` declares how
many images the samples have, for an encoder that skips the padding. The layers here compute it.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo.blocks import Embedding, chain, transformer_layer
from graphpipe.model.zoo.synthetic_tasks import classify_images
from graphpipe.model.zoo.zoo_model import Batch, ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionLanguageShape:
    """Sizes of the vision-language model."""

    images: int = 1
    """Number of images per sample, with padding."""
    pixels: int = multiple_of("patch", 224)
    patch: int = 14
    vision_layers: int = 24
    vision_hidden: int = multiple_of("vision_heads", 1024)
    vision_heads: int = 16
    vision_feed_forward: int = 4096
    layers: int = 16
    sequence: int = 256
    """Number of tokens of the text."""
    hidden: int = multiple_of("heads", 2048)
    heads: int = 16
    feed_forward: int = 8192
    vocabulary: int = 32000


PAPER = VisionLanguageShape()
SMALL = VisionLanguageShape(
    images=2,
    pixels=16,
    patch=4,
    vision_layers=2,
    vision_hidden=32,
    vision_heads=4,
    vision_feed_forward=64,
    layers=3,
    sequence=16,
    hidden=64,
    heads=4,
    feed_forward=256,
    vocabulary=16,
)


class ImagePatches(nn.Module):
    """ImagePatches of images and their positions: (n, images, 3, pixels, pixels) -> (n, images, patches, hidden)."""

    def __init__(self, shape: VisionLanguageShape) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, shape.vision_hidden, shape.patch, stride=shape.patch)
        self.position = nn.Parameter(0.02 * torch.randn((shape.pixels // shape.patch) ** 2, shape.vision_hidden))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.project(pixels.flatten(0, 1)).flatten(2).transpose(1, 2)
        return (patches + self.position).unflatten(0, pixels.shape[:2])


class EachImage(nn.Module):
    """A block for every image on its own: (n, images, patches, hidden) -> the same."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, states: Tensor) -> Tensor:
        return self.block(states.flatten(0, 1)).unflatten(0, states.shape[:2])


class Projector(nn.Module):
    """Four neighbouring patches make one position: (n, images, patches, width) -> (n, images * patches / 4, hidden)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(4 * width, hidden)
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        side = int(states.shape[2] ** 0.5)
        grid = self.norm(states).unflatten(2, (side // 2, 2, side // 2, 2))
        joined = grid.transpose(3, 4).flatten(4).flatten(1, 3)
        return self.mix(functional.gelu(self.widen(joined)))


class JoinImages(nn.Module):
    """Puts the positions of the images before those of the text."""

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        return torch.cat((images, text), dim=1)


class TextHead(nn.Module):
    """Logits of the next tokens, at the last `sequence` positions: (n, length, hidden) -> (n, sequence, vocabulary)."""

    def __init__(self, shape: VisionLanguageShape) -> None:
        super().__init__()
        self.sequence = shape.sequence
        self.norm = nn.LayerNorm(shape.hidden)
        self.vocabulary = nn.Linear(shape.hidden, shape.vocabulary)

    def forward(self, states: Tensor) -> Tensor:
        return self.vocabulary(self.norm(states[:, -self.sequence :]))


def build(shape: VisionLanguageShape, device: str) -> ZooModel:
    """Return the model.

    Its inputs are pixels (n, images, 3, pixels, pixels) float32 and tokens (n, sequence) int64, the output
    (n, sequence, vocabulary).
    """
    with torch.device(device):
        vision = {
            f"layer{index}": EachImage(
                transformer_layer(shape.vision_hidden, shape.vision_heads, shape.vision_feed_forward)
            )
            for index in range(shape.vision_layers)
        }
        layers = {
            f"layer{index}": transformer_layer(shape.hidden, shape.heads, shape.feed_forward, causal=True)
            for index in range(shape.layers)
        }
        modules: dict[str, nn.Module] = {
            "vision": chain({"patches": ImagePatches(shape), **vision}),
            "projector": Projector(shape.vision_hidden, shape.hidden),
            "embedding": Embedding(shape.vocabulary, shape.sequence, shape.hidden),
            "join": JoinImages(),
            "decoder": chain(layers),
            "head": TextHead(shape),
        }
    inputs = {
        "vision": ["pixels"],
        "projector": ["vision"],
        "embedding": ["tokens"],
        "join": ["projector", "embedding"],
        "decoder": ["join"],
        "head": ["decoder"],
    }
    module = DagModule(modules, inputs=inputs, name="vision-language")
    return assemble(module, _next_token_loss, _Captions(shape), device)


@dataclass(frozen=True, slots=True)
class _Captions:
    # The text counts up from the label of the images, modulo the vocabulary. Its first token is 0.
    shape: VisionLanguageShape

    def __call__(self, generator: Generator, samples: int) -> Batch:
        classes = min(4, self.shape.vocabulary)
        task = classify_images(classes, self.shape.pixels)
        drawn = [task(generator, self.shape.images) for _ in range(samples)]
        pixels = torch.stack([inputs["pixels"] for inputs, _ in drawn])
        labels = torch.stack([rows[:1] for _, rows in drawn])
        text = (labels + torch.arange(self.shape.sequence)) % self.shape.vocabulary
        tokens = torch.cat((torch.zeros(samples, 1, dtype=torch.int64), text[:, :-1]), dim=1)
        return {"pixels": pixels, "tokens": tokens}, text


def _next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
