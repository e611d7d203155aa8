"""Qwen2-VL with its vision tower, for mini-batches in which every sample has one image of the same size.

    inputs = by_samples(model, batch)                       # of a mini-batch as the processor returns it
    whole = ImagesAndText(model, batch["image_grid_thw"][0])
    graph = gp.capture(whole, inputs)                       # every layer of images and of text is an operator

The model itself takes the patches of all images in one dimension, and attends to one image after the other. Here
samples are the first dimension. `ImagesAndText` shares the model's weights.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionBlock, apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_position_ids


class Layer(nn.Module):
    """A layer of the vision tower, over images of the same number of patches."""

    def __init__(self, block: Qwen2VLVisionBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return patches of shape [samples, patches, width]."""
        attention, normed = self.block.attn, self.block.norm1(hidden)
        query, key, value = attention.qkv(normed).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        query, key = apply_rotary_pos_emb_vision(query, key, *angles)
        heads = (each.transpose(1, 2) for each in (query, key, value))
        found = functional.scaled_dot_product_attention(*heads, scale=attention.scaling)
        hidden = hidden + attention.proj(found.transpose(1, 2).flatten(2))
        return hidden + self.block.mlp(self.block.norm2(hidden))


class ImagesAndText(nn.Module):
    """From patches and words to the scores of the next words."""

    def __init__(self, model: Qwen2VLForConditionalGeneration, grid: Tensor) -> None:
        super().__init__()
        vision, self.image = model.model.visual, model.config.image_token_id
        self.positions: Tensor
        positions = get_vision_position_ids(grid[None], vision.spatial_merge_size)
        self.register_buffer("positions", positions, persistent=False)
        self.patches, self.rotary, self.merger = vision.patch_embed, vision.rotary_pos_emb, vision.merger
        self.layers = nn.ModuleList(Layer(block) for block in vision.blocks)
        self.text, self.head = model.model.language_model, model.lm_head

    def forward(self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Return scores of shape [samples, words, vocabulary].

        Args:
            pixel_values: of shape [samples, patches, values].
            input_ids: of shape [samples, words].
            attention_mask: of shape [samples, words].
            position_ids: of shape [samples, 3, words].
        """
        hidden = self.patches(pixel_values).unflatten(0, pixel_values.shape[:2])
        angles = self.rotary(hidden, self.positions)
        for layer in self.layers:
            hidden = layer(hidden, angles)
        words, places = self.text.embed_tokens(input_ids), (input_ids == self.image).unsqueeze(-1)
        mixed = words.masked_scatter(places, self.merger(hidden))
        positions = position_ids.transpose(0, 1)
        found = self.text(inputs_embeds=mixed, attention_mask=attention_mask, position_ids=positions, use_cache=False)
        return self.head(found.last_hidden_state)


def by_samples(model: Qwen2VLForConditionalGeneration, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the inputs of `ImagesAndText` for a mini-batch as the processor returns it."""
    words, mask, kinds = batch["input_ids"], batch["attention_mask"], batch["mm_token_type_ids"]
    positions, _ = model.model.get_rope_index(words, kinds, image_grid_thw=batch["image_grid_thw"], attention_mask=mask)
    return {
        "pixel_values": batch["pixel_values"].unflatten(0, (len(words), -1)),
        "input_ids": words,
        "attention_mask": mask,
        "position_ids": positions.transpose(0, 1).contiguous(),
    }
