"""The models of DawnPiper and vPipe that can be built here: BERT, GPT-2, T5, and a network of cells like AmoebaNet.

References:
    Devlin et al.: BERT. NAACL 2019 (large: 24 layers, hidden size 1024).
    Radford et al.: Language models are unsupervised multitask learners. 2019 (medium: 24 layers, hidden size 1024).
    Raffel et al.: Exploring the limits of transfer learning with a unified text-to-text transformer. JMLR 2020 (base).
    Real et al.: Regularized evolution for image classifier architecture search. AAAI 2019 (18 cells).
"""

import warnings
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model.zoo import gpt

library: Any = transformers
"""Its configurations are not typed as they are called."""
WORDS, CELLS, CHANNELS, PIXELS = 512, 18, 128, 224


class Separable(nn.Module):
    """A convolution of each channel, and one over the channels."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels, bias=False)
        self.point = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return as many maps."""
        return self.norm(self.point(self.depth(torch.relu(maps))))


class Cell(nn.Module):
    """Five pairs of operations on the two cells before it, concatenated, as in AmoebaNet-A."""

    def __init__(self, before: int, last: int, channels: int, strides: tuple[int, int]) -> None:
        super().__init__()
        self.older = nn.Conv2d(before, channels, 1, strides[0], bias=False)
        self.newer = nn.Conv2d(last, channels, 1, strides[1], bias=False)
        self.pool = nn.AvgPool2d(3, 1, 1)
        self.wide = nn.ModuleList([Separable(channels, 5) for _ in range(2)])
        self.narrow = nn.ModuleList([Separable(channels, 3) for _ in range(3)])

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Return four times `channels` maps."""
        older, newer = self.older(before), self.newer(last)
        first = self.pool(older) + self.wide[0](newer)
        second = self.narrow[0](older) + newer
        third = self.wide[1](first) + self.narrow[1](second)
        return torch.cat([first, second, third, self.narrow[2](third) + self.pool(newer)], 1)


class Cells(nn.Module):
    """A stem, cells in three groups of falling resolution, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, 4, 1, bias=False)
        self.cells = nn.ModuleList()
        before, last, channels, earlier = CHANNELS, CHANNELS, CHANNELS, 1
        for number in range(CELLS):
            stride = 2 if number in (CELLS // 3, 2 * CELLS // 3) else 1
            channels *= stride
            self.cells.append(Cell(before, last, channels, (earlier * stride, stride)))
            before, last, earlier = last, 4 * channels, stride
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000))

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of classes."""
        before = last = self.stem(images)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last)


def _words() -> Tensor:
    return torch.ones(2, WORDS, dtype=torch.long)


def bert() -> gp.Graph:
    """Return BERT-large with its language model head."""
    config = library.BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        tie_word_embeddings=False,
    )
    return _transformer(library.BertForMaskedLM, config, {"input_ids": _words()})


def gpt2() -> gp.Graph:
    """Return GPT-2 medium, without tied weights."""
    shape = gpt.GptShape(layers=24, sequence=WORDS, hidden=1024, heads=16, feed_forward=4096)
    built = gpt.build(shape, "meta")
    return gp.capture(built.module, built.example_inputs)


def t5() -> gp.Graph:
    """Return T5-base."""
    config = library.T5Config(
        d_model=768,
        d_kv=64,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    inputs = {"input_ids": _words(), "decoder_input_ids": _words()}
    return _transformer(library.T5ForConditionalGeneration, config, inputs)


def cells() -> gp.Graph:
    """Return the network of cells."""
    with torch.device("meta"):
        module = Cells()
    return gp.capture(module, torch.empty(2, 3, PIXELS, PIXELS, device="meta"))


def _transformer(kind: Any, config: Any, inputs: dict[str, Tensor]) -> gp.Graph:
    with torch.device("meta"):
        module = cast("nn.Module", kind(config))
    with warnings.catch_warnings(action="ignore"):
        return gp.from_transformers(module, inputs).graph


MODELS = {"BERT-large": bert, "GPT-2 medium": gpt2, "T5-base": t5, "AmoebaNet-like": cells}
