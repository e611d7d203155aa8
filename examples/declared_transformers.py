"""Models of Hugging Face that torch.export cannot follow, declared as graphs of their own parts:

    llava(model)    LLaVA: its check of the number of image tokens fixes the size of the mini-batch
    vilt(model)     ViLT: it selects patches by the values of the mask

Both return a `gp.DagModule` of the model's own submodules. They share the weights, so training one trains the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, PreTrainedConfig, ViltForQuestionAnswering
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

import graphpipe as gp


class ImageFeatures(nn.Module):
    """The vision tower up to the layer whose features LLaVA uses, without the class token."""

    def __init__(self, tower: nn.Module, layers: int) -> None:
        super().__init__()
        self.embeddings, self.norm = tower.embeddings, tower.pre_layrnorm
        self.layers = nn.ModuleList(list(tower.encoder.layers)[:layers])

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden = self.norm(self.embeddings(pixel_values))
        for layer in self.layers:
            hidden = layer(hidden, None)
        return hidden[:, 1:]


class Merge(nn.Module):
    """Puts the image features in place of the text's image tokens."""

    def __init__(self, image_token: int) -> None:
        super().__init__()
        self.image_token = image_token

    def forward(self, input_ids: Tensor, words: Tensor, images: Tensor) -> Tensor:
        return words.masked_scatter((input_ids == self.image_token).unsqueeze(-1), images)


class DecoderLayers(nn.Module):
    """Some layers of a Llama. Each stage makes masks and positions itself, so they are not sent."""

    def __init__(self, config: PreTrainedConfig, rotary: nn.Module, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config, self.rotary, self.layers = config, rotary, nn.ModuleList(layers)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        mask = create_causal_mask(
            config=self.config, inputs_embeds=hidden, attention_mask=attention_mask, past_key_values=None
        )
        rotated = self.rotary(hidden, position_ids=positions)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotated, position_ids=positions)
        return hidden


def llava(model: LlavaForConditionalGeneration, cuts: int = 2) -> gp.DagModule:
    """Return LLaVA from `input_ids`, `pixel_values` and `attention_mask` to the scores of the next words.

    Args:
        model: with one vision feature layer and a Llama.
        cuts: number of pieces of the language model's layers.
    """
    config, inner = model.config, model.model
    language = inner.language_model
    tower = inner.vision_tower
    chosen = config.vision_feature_layer % (len(tower.encoder.layers) + 1)
    size = -(-len(language.layers) // cuts)
    pieces = [language.layers[start : start + size] for start in range(0, len(language.layers), size)]
    names = [f"layers_{number}" for number in range(len(pieces))]
    blocks = [DecoderLayers(language.config, language.rotary_emb, piece) for piece in pieces]
    before = ["merge", *names]
    return gp.DagModule(
        {
            "images": ImageFeatures(tower, chosen),
            "projector": inner.multi_modal_projector,
            "words": language.embed_tokens,
            "merge": Merge(config.image_token_id),
            **dict(zip(names, blocks, strict=True)),
            "head": nn.Sequential(language.norm, model.lm_head),
        },
        inputs={
            "images": ["pixel_values"],
            "projector": ["images"],
            "words": ["input_ids"],
            "merge": ["input_ids", "words", "projector"],
            **{name: [previous, "attention_mask"] for name, previous in zip(names, before, strict=False)},
            "head": [before[-1]],
        },
        name="Llava",
    )


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
