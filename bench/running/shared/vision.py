"""A tiny model with the parts of a vision-language model: an image encoder beside the words of a language model."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bench.running.shared.layers import Attention, FeedForward, Shape

PATCHES, WORDS, BATCH = 8, 8, 8
_LANGUAGE = Shape(layers=4, hidden=32, heads=4, key_value_heads=4, feed_forward=64, vocabulary=32, length=WORDS)
_VISION = Shape(layers=2, hidden=16, heads=4, key_value_heads=4, feed_forward=32)


class VisionLanguage(nn.Module):
    """Images (n, patches, 12) and tokens (n, words) -> logits of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(12, _VISION.hidden), *_layers(_VISION))
        self.projector = nn.Linear(_VISION.hidden, _LANGUAGE.hidden)
        self.embedding = nn.Embedding(_LANGUAGE.vocabulary, _LANGUAGE.hidden)
        self.layers = nn.Sequential(*_layers(_LANGUAGE))
        self.head = nn.Linear(_LANGUAGE.hidden, _LANGUAGE.vocabulary, bias=False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits."""
        values = torch.cat([self.projector(self.vision(images)), self.embedding(tokens)], dim=1)
        return self.head(self.layers(values)[:, PATCHES:])

    def named_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the attention and feed-forward parts by name."""
        return ((name, part) for name, part in self.named_modules() if isinstance(part, (Attention, FeedForward)))


def vision_language() -> VisionLanguage:
    """Return the model in double precision, with the same weights each time."""
    torch.manual_seed(0)
    return VisionLanguage().double()


def inputs() -> dict[str, Tensor]:
    """Return a mini-batch."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, PATCHES, 12, generator=draw, dtype=torch.float64)
    return {"images": images, "tokens": torch.randint(_LANGUAGE.vocabulary, (BATCH, WORDS), generator=draw)}


def _layers(shape: Shape) -> list[nn.Module]:
    return [part for _ in range(shape.layers) for part in (Attention(shape), FeedForward(shape))]
