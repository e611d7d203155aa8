"""Families of Hugging Face that read texts with images, tried with texts only."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import Family, words
from bench.family_inputs import given, sizes, texts_with
from bench.family_others import other

_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
_WITHOUT_CACHE: dict[str, Any] = {"use_cache": False}
"""The forwards of models for retrieval cannot switch it off."""
_MIXED = {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}

_CODES: dict[str, Any] = {
    **{"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 32, "base_channels": 32},
    **{"channel_multiplier": [1, 1, 1], "num_res_blocks": 1},
}

DIALOGUES: dict[str, Callable[[], Family]] = {
    "molmo2": other(
        "AutoModelForImageTextToText",
        "molmo2",
        inputs=given(input_ids=words(), mm_token_type_ids=torch.zeros_like(words()), labels=words()),
        adapter_config={"vision_feature_layer": [2, 1]},
    ),
    "colqwen2": other(
        "ColQwen2ForRetrieval",
        "colqwen2",
        inputs=texts_with(),
        vlm_config={"text_config": {"rope_parameters": _ROPE, **_WITHOUT_CACHE}},
    ),
    "colpali": other(
        "ColPaliForRetrieval",
        "colpali",
        inputs=texts_with(),
        attn_implementation="eager",
        vlm_config={"text_config": _WITHOUT_CACHE},
    ),
    **{
        name: other("AutoModelForImageTextToText", name, labels=True, insert_layer_id=1, text_config=_MIXED)
        for name in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7")
    },
    **{
        name: other(
            "AutoModelForImageTextToText",
            name,
            labels=True,
            text_config={"mlp_layer_types": ["dense", "sparse", "sparse"]},
        )
        for name in ("deepseek_ocr2", "unlimited_ocr")
    },
    "granite4_vision": other(
        "AutoModelForImageTextToText",
        "granite4_vision",
        labels=True,
        vision_config={"hidden_size": 64},
        **sizes({"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1, 2], "downsample_rate": "1/2"}),
    ),
    "nemotron_h_omni": other(
        "AutoModelForImageTextToText",
        "nemotron_h_omni",
        labels=True,
        vision_config={"video_temporal_patch_size": 2},
    ),
    "chameleon": other(
        "AutoModelForImageTextToText",
        "chameleon",
        labels=True,
        vq_config=_CODES,
        **sizes({"vocabulary_map": {"<image>": 60, "IMGIMGA": 40}, "num_key_value_heads": 4}),
    ),
}
