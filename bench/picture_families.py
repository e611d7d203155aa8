"""Families of Hugging Face that read images with texts, each with sizes or inputs of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import LENGTH, SAMPLES, Family, pixels, words
from bench.family_inputs import Inputs, drawn, given, labelled, texts_with
from bench.family_others import other
from bench.image_families import PLACEHOLDER

_TILES: dict[str, Tensor] = {
    **{"pixel_values": drawn(1, 4, 3, 32, 32), "aspect_ratio_ids": torch.full((SAMPLES, 1), 6)},
    "aspect_ratio_mask": torch.ones(SAMPLES, 1, 4, dtype=torch.long),
    "cross_attention_mask": torch.ones(SAMPLES, LENGTH, 1, 4, dtype=torch.long),
}
"""One image of each sample, in two rows of two tiles."""
_PATCHES: dict[str, Tensor] = {
    **{"pixel_values": drawn(16, 192), "pixel_attention_mask": torch.ones(SAMPLES, 16, dtype=torch.long)},
    "spatial_shapes": torch.full((SAMPLES, 2), 4),
}
_STAGES: dict[str, Any] = {
    **{"depths": [1, 2], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]},
    **{"patch_prenorm": [False, True], "embed_dim": [8, 16], "num_heads": [2, 2], "num_groups": [2, 2]},
    **{"window_size": 2, "projection_dim": 16},
}


def _open(inputs: Inputs) -> Inputs:
    # The gates through which Mllama lets its images in are closed at first, so no gradient would pass them.
    def opened(model: Any) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for each in model.parameters():
                if not each.any():
                    each.normal_(std=0.1, generator=draw)
        return inputs(model)

    return opened


PICTURES: dict[str, Callable[[], Family]] = {
    "mllama": other(
        "AutoModelForImageTextToText",
        "mllama",
        inputs=_open(texts_with(labels=words(), **_TILES)),
        vision_config={"num_global_layers": 2, "intermediate_layers_indices": [0, 2], "vision_output_dim": 48},
        text_config={"cross_attention_layers": [1]},
    ),
    "llama4": other(
        "AutoModelForImageTextToText",
        "llama4",
        inputs=labelled(4, PLACEHOLDER, pixel_values=pixels()),
        image_token_id=PLACEHOLDER,
        vision_config={
            **{"intermediate_size": 64, "vision_output_dim": 16, "projector_input_dim": 16},
            "projector_output_dim": 16,
        },
    ),
    "fuyu": other(
        "AutoModelForCausalLM",
        "fuyu",
        inputs=labelled(4, PLACEHOLDER, pixel_values=drawn(4, 192)),
        image_token_id=PLACEHOLDER,
    ),
    "florence2": other(
        "AutoModelForImageTextToText",
        "florence2",
        inputs=labelled(17, PLACEHOLDER, pixel_values=pixels()),
        image_token_id=PLACEHOLDER,
        vision_config=_STAGES,
    ),
    "siglip2": other("AutoModel", "siglip2", inputs=texts_with(**_PATCHES), vision_config={"num_patches": 16}),
    "siglip2_vision_model": other("AutoModel", "siglip2_vision_model", inputs=given(**_PATCHES), num_patches=16),
}
"""The first four in place of the same families without images."""
