"""Families of Hugging Face that detect objects, compare images, or encode them for others."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import LAYERS, LENGTH, SAMPLES, Family, library, pixels
from bench.family_inputs import drawn, given, images, resnet, sizes, swin, texts_with
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

_HEADS: dict[str, Any] = {"decoder_self_attention_heads": 4, "decoder_cross_attention_heads": 4, "num_queries": 5}
_TOWER: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "patch_size": 8}


def _light(kind: str, name: str, size: int, **more: Any) -> Callable[[], Family]:
    # Its decoder has other queries in training than in evaluation.
    return other(kind, name, inputs=images(size), decoder_ffn_dim=16, **_HEADS, **more)


def _fine(kind: str, name: str) -> Callable[[], Family]:
    channels: dict[str, Any] = {"encoder_in_channels": [8, 16, 16], "decoder_in_channels": [16, 16, 16]}
    counts: dict[str, Any] = {"encoder_layers": 1, "encode_proj_layers": [2], "num_queries": 5, "num_denoising": 0}
    backbone = library.ResNetConfig(**resnet(2, 3, 4))
    widths: dict[str, Any] = {"encoder_hidden_dim": 16, "decoder_ffn_dim": 16}
    return other(kind, name, inputs=images(64), backbone_config=backbone, **channels, **counts, **widths)


DETECTORS: dict[str, Callable[[], Family]] = {
    "lw_detr_vit": other("AutoBackbone", "lw_detr_vit", inputs=images(64), **_LIGHT),
    "rf_detr_dinov2": other("AutoBackbone", "rf_detr_dinov2", inputs=images(), **_WHOLE),
    "gemma4_vision": other(
        "AutoModel",
        "gemma4_vision",
        inputs=given(pixel_values=drawn(16, 192), pixel_position_ids=_PLACES),
        **sizes({"pooling_kernel_size": 2, "position_embedding_size": 16, "num_key_value_heads": 4}),
    ),
    "lw_detr": _light(
        "LwDetrForObjectDetection",
        "lw_detr",
        64,
        backbone_config={**_TOWER, **_LIGHT, "model_type": "lw_detr_vit", "out_indices": [1, 3]},
        projector_scale_factors=[1.0],
    ),
    "rf_detr": _light(
        "RfDetrForObjectDetection",
        "rf_detr",
        32,
        backbone_config={**_TOWER, **_WHOLE, "model_type": "rf_detr_dinov2", "image_size": 32},
    ),
    "d_fine": _fine("DFineForObjectDetection", "d_fine"),
    "deimv2": _fine("Deimv2ForObjectDetection", "deimv2"),
    "grounding-dino": _grounded("GroundingDinoForObjectDetection", "grounding-dino"),
    "mm-grounding-dino": _grounded("MMGroundingDinoForObjectDetection", "mm-grounding-dino"),
    "efficientloftr": other("AutoModel", "efficientloftr", inputs=given(pixel_values=drawn(2, 3, 64, 64)), **_PAIRS),
}
