"""A model of Hugging Face, declared as a graph of its own parts. It serves for models that torch.export cannot follow.

`gp.capture` follows ViLT, and keeps its embeddings together, because these select patches by the values of the mask.
Here words and patches are two branches. `vilt(model)` returns a `gp.DagModule` of the model's own submodules.
Both share the weights, so training one trains the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, ViltForQuestionAnswering
from transformers.masking_utils import create_bidirectional_mask

import graphpipe as gp


class ViltWords(nn.Module):
    """The embedded words, marked as text."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.words, self.kinds = embeddings.text_embeddings, embeddings.token_type_embeddings

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.words(input_ids) + self.kinds(torch.zeros_like(input_ids))


class ViltPatches(nn.Module):
    """All patches of images of the model's own size in their order, marked as image."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.patches, self.kinds = embeddings.patch_embeddings, embeddings.token_type_embeddings
        self.first, self.positions = embeddings.cls_token, embeddings.position_embeddings
        self.dropout = embeddings.dropout

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.patches(pixel_values).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1) + self.positions
        kinds = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        return self.dropout(hidden) + self.kinds(kinds)


class Both(nn.Module):
    """One sequence of words and patches."""

    def forward(self, words: Tensor, patches: Tensor) -> Tensor:
        return torch.cat([words, patches], 1)


class ViltLayers(nn.Module):
    """Some layers over both."""

    def __init__(self, config: PreTrainedConfig, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config, self.layers = config, nn.ModuleList(layers)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        patches = attention_mask.new_ones(len(hidden), hidden.shape[1] - attention_mask.shape[1])
        both = torch.cat([attention_mask, patches], 1)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=both)
        for layer in self.layers:
            hidden = layer(hidden, mask)[0]
        return hidden


def vilt(model: ViltForQuestionAnswering) -> gp.DagModule:
    """Return ViLT from `input_ids`, `attention_mask` and `pixel_values` to the scores of the answers."""
    inner, layers = model.vilt, model.vilt.encoder.layer
    half = len(layers) // 2
    return gp.DagModule(
        {
            "words": ViltWords(inner.embeddings),
            "patches": ViltPatches(inner.embeddings),
            "both": Both(),
            "early": ViltLayers(model.config, layers[:half]),
            "late": ViltLayers(model.config, layers[half:]),
            "head": nn.Sequential(inner.layernorm, inner.pooler, model.classifier),
        },
        inputs={
            "words": ["input_ids"],
            "patches": ["pixel_values"],
            "both": ["words", "patches"],
            "early": ["both", "attention_mask"],
            "late": ["early", "attention_mask"],
            "head": ["late"],
        },
        name="Vilt",
    )
