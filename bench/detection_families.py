"""Families of Hugging Face that detect objects, compare images, or encode them for others."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import LENGTH, SAMPLES, Family, pixels
from bench.family_inputs import drawn, given, images, sizes, swin, texts_with
from bench.family_others import other

_LIGHT: dict[str, Any] = {"num_windows": 4, "window_block_indices": [0], "image_size": 64, "pretrain_image_size": 64}
_WHOLE: dict[str, Any] = {"out_indices": [1, 3], "num_windows": 1}
_PLACES = torch.cartesian_prod(torch.arange(4), torch.arange(4)).repeat(SAMPLES, 1, 1)
_GROUNDED: dict[str, Any] = {"backbone_config": swin(2, 3, 4), "d_model": 32, "num_queries": 5}


def _grounded(kind: str, name: str) -> Callable[[], Family]:
    # Scores of words beyond the text would be minus infinity.
    return other(kind, name, inputs=texts_with(pixel_values=pixels(64)), max_text_len=LENGTH, **_GROUNDED)


_PAIRS: dict[str, Any] = {
    **{"out_features": [16, 16, 16, 32], "stage_num_blocks": [1, 1, 1, 2], "hidden_size": 32},
    **{"num_attention_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8},
}

DETECTORS: dict[str, Callable[[], Family]] = {
    "lw_detr_vit": other("AutoBackbone", "lw_detr_vit", inputs=images(64), **_LIGHT),
    "rf_detr_dinov2": other("AutoBackbone", "rf_detr_dinov2", inputs=images(), **_WHOLE),
    "gemma4_vision": other(
        "AutoModel",
        "gemma4_vision",
        inputs=given(pixel_values=drawn(16, 192), pixel_position_ids=_PLACES),
        **sizes({"pooling_kernel_size": 2, "position_embedding_size": 16, "num_key_value_heads": 4}),
    ),
    "grounding-dino": _grounded("GroundingDinoForObjectDetection", "grounding-dino"),
    "mm-grounding-dino": _grounded("MMGroundingDinoForObjectDetection", "mm-grounding-dino"),
    "efficientloftr": other("AutoModel", "efficientloftr", inputs=given(pixel_values=drawn(2, 3, 64, 64)), **_PAIRS),
}
