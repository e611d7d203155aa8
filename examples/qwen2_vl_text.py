"""The text model of Qwen2-VL with a frozen vision tower, which takes the patches of all images in one dimension.

    inputs = embedded(model, batch)              # per mini-batch, without gradients
    graph = gp.capture(Text(model), inputs)      # scores of the next words

`Text` shares the model's weights. They are trained, but for the embeddings of words.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import Qwen2VLForConditionalGeneration


class Text(nn.Module):
    """From embedded words and images to the scores of the next words."""

    def __init__(self, model: Qwen2VLForConditionalGeneration) -> None:
        super().__init__()
        self.layers, self.head = model.model.language_model, model.lm_head

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Return scores of shape [samples, words, vocabulary], for positions of shape [samples, 3, words]."""
        positions = position_ids.transpose(0, 1)
        hidden = self.layers(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=positions, use_cache=False
        )
        return self.head(hidden.last_hidden_state)


@torch.no_grad()
def embedded(model: Qwen2VLForConditionalGeneration, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of `Text` for a mini-batch as the processor returns it."""
    words, grid = batch["input_ids"], batch["image_grid_thw"]
    features = torch.cat(list(model.model.get_image_features(batch["pixel_values"], grid).pooler_output))
    places = (words == model.config.image_token_id).unsqueeze(-1)
    mask, kinds = batch["attention_mask"], batch["mm_token_type_ids"]
    positions, _ = model.model.get_rope_index(words, kinds, image_grid_thw=grid, attention_mask=mask)
    return {
        "inputs_embeds": model.get_input_embeddings()(words).masked_scatter(places, features),
        "attention_mask": mask,
        "position_ids": positions.transpose(0, 1).contiguous(),
    }
