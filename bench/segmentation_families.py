"""Families of Hugging Face that segment images."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family, pixels, words
from bench.family_inputs import drawn, given, images, sizes, swin
from bench.family_others import other

_LAST: dict[str, Any] = {"backbone_config": swin(1, 2, 3, 4), "num_queries": 5}
_PROMPT = {"input_points": torch.full((SAMPLES, 1, 2, 2), 8.0), "input_labels": torch.ones(SAMPLES, 1, 2).long()}
_HIERA: dict[str, Any] = {
    **{"hidden_size": 8, "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 4, 4]},
    **{"blocks_per_stage": [1, 1, 2, 1], "image_size": [128, 128], "window_size_per_stage": [8, 4, 4, 2]},
    **{"global_attention_blocks": [3], "num_attention_heads": 1},
}
_PYRAMID: dict[str, Any] = {
    **{"backbone_channel_list": [64, 32, 16, 8], "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
    **{
        "fpn_hidden_size": 32,
        "fpn_top_down_levels": [2, 3],
        "backbone_config": {"model_type": "sam2_hiera_det_model", **_HIERA},
    },
}
_DECODER: dict[str, Any] = {"hidden_size": 32, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
_WINDOWS: dict[str, Any] = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 64},
    **{"patch_size": 8, "window_size": 4, "global_attn_indexes": [1], "pretrain_image_size": 32},
}

SEGMENTERS: dict[str, Callable[[], Family]] = {
    "maskformer-swin": other("AutoBackbone", "maskformer-swin", inputs=images(64), **swin(1, 2, 3, 4)),
    "maskformer": other(
        "AutoModelForUniversalSegmentation",
        "maskformer",
        inputs=images(128),
        backbone_config=swin(1, 2, 3, 4),
        decoder_config={"d_model": 32, "num_queries": 5, "use_timm_backbone": False},
        **sizes({"fpn_feature_size": 32, "mask_feature_size": 32}),
    ),
    "oneformer": other(
        "AutoModelForUniversalSegmentation",
        "oneformer",
        inputs=given(pixel_values=pixels(64), task_inputs=words()),
        **_LAST,
        **sizes({"hidden_dim": 32, "mask_dim": 32, "conv_dim": 32, "text_encoder_width": 32, "num_attention_heads": 2}),
        **sizes(
            {"encoder_feedforward_dim": 16, "dim_feedforward": 16, "task_seq_len": 7, "text_encoder_vocab_size": 64}
        ),
        **sizes({"text_encoder_num_layers": 1, "text_encoder_context_length": 7, "text_encoder_n_ctx": 2}),
    ),
    "seggpt": other(
        "SegGptForImageSegmentation",
        "seggpt",
        inputs=given(pixel_values=pixels(), prompt_pixel_values=pixels(), prompt_masks=pixels()),
        **sizes({"image_size": [64, 32], "pretrain_image_size": 32, "merge_index": 0, "decoder_hidden_size": 8}),
        intermediate_hidden_state_indices=[1, 2],
    ),
    "sam2_hiera_det_model": other("AutoModel", "sam2_hiera_det_model", inputs=images(128), **_HIERA),
    "sam2_vision_model": other("AutoModel", "sam2_vision_model", inputs=images(128), **_PYRAMID),
    "sam2": other(
        "AutoModel",
        "sam2",
        inputs=given(pixel_values=pixels(128), **_PROMPT),
        vision_config=_PYRAMID,
        prompt_encoder_config={"hidden_size": 32, "image_size": 128, "patch_size": 16},
        mask_decoder_config=_DECODER,
    ),
    "sam_hq": other(
        "AutoModel",
        "sam_hq",
        inputs=images(),
        vision_config={"output_channels": 16, "num_pos_feats": 8, "global_attn_indexes": [0, 2]},
        prompt_encoder_config={"image_embedding_size": 4},
        mask_decoder_config={"vit_dim": 16},
    ),
    "sam3_tracker": other(
        "AutoModel",
        "sam3_tracker",
        inputs=given(pixel_values=pixels(64), **_PROMPT),
        vision_config={
            "backbone_config": {"model_type": "sam3_vit_model", **_WINDOWS},
            **{"fpn_hidden_size": 32, "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 64, "patch_size": 8},
        mask_decoder_config=_DECODER,
    ),
    "videomt": other(
        "AutoModelForUniversalSegmentation",
        "videomt",
        inputs=given(pixel_values_videos=drawn(2, 3, 32, 32)),
        **sizes({"num_blocks": 1, "num_queries": 5, "num_register_tokens": 1, "num_upscale_blocks": 1}),
    ),
}
