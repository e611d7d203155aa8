"""Families of Hugging Face that detect objects."""

from collections.abc import Callable
from typing import Any

from bench.family_builders import Family
from bench.family_inputs import images
from bench.family_others import other

_LIGHT: dict[str, Any] = {"num_windows": 4, "window_block_indices": [0], "image_size": 64, "pretrain_image_size": 64}


DETECTORS: dict[str, Callable[[], Family]] = {
    "lw_detr_vit": other("AutoBackbone", "lw_detr_vit", inputs=images(64), **_LIGHT),
    "rf_detr_dinov2": other("AutoBackbone", "rf_detr_dinov2", inputs=images(), out_indices=[1, 3], num_windows=1),
}
