"""Families of Hugging Face that detect objects, or encode images for others."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family
from bench.family_inputs import drawn, given, images, sizes
from bench.family_others import other

_LIGHT: dict[str, Any] = {"num_windows": 4, "window_block_indices": [0], "image_size": 64, "pretrain_image_size": 64}
_WHOLE: dict[str, Any] = {"out_indices": [1, 3], "num_windows": 1}
_PLACES = torch.cartesian_prod(torch.arange(4), torch.arange(4)).repeat(SAMPLES, 1, 1)


DETECTORS: dict[str, Callable[[], Family]] = {
    "lw_detr_vit": other("AutoBackbone", "lw_detr_vit", inputs=images(64), **_LIGHT),
    "rf_detr_dinov2": other("AutoBackbone", "rf_detr_dinov2", inputs=images(), **_WHOLE),
    "gemma4_vision": other(
        "AutoModel",
        "gemma4_vision",
        inputs=given(pixel_values=drawn(16, 192), pixel_position_ids=_PLACES),
        **sizes({"pooling_kernel_size": 2, "position_embedding_size": 16, "num_key_value_heads": 4}),
    ),
}
