"""Families of Hugging Face that are the text parts of others, or read texts with further inputs."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family
from bench.family_inputs import drawn, given, texts_with
from bench.family_others import other
from bench.family_sizes import CAUSAL, ONE_GROUP

_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
_HALF = {**_ROPE, "mrope_section": [1, 0, 0], "partial_rotary_factor": 0.5}
_INDEXED: dict[str, Any] = {**ONE_GROUP, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2}
_NEXT: dict[str, Any] = {
    **{**_INDEXED, "qk_rope_head_dim": 0, "index_kpool": 2, "linear_head_dim": 4, "linear_num_heads": 4},
    **{"hc_mult": 2, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"], "head_dim": 0},
}
_SLIDING = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 8, "swa_kv_lora_rank": 8}
_NOTE: dict[str, Any] = {
    **{**_INDEXED, **_SLIDING, "swa_head_dim": 8, "swa_qk_nope_head_dim": 4, "swa_v_head_dim": 4, "head_dim": 8},
    **{"shared_experts_intermediate_size": 16, "sliding_window": 4},
    "layer_types": ["indexed_attention", "sliding_attention", "indexed_attention"],
}
_HEARD: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_sizes": [8] * 4,
    "patch_sizes": [4, 2, 2, 2],
    "out_hidden_size": 16,
}
_THREE: dict[str, Any] = {
    **{"hidden_size": 32, "num_attention_heads": 2, "moe_intermediate_size": [16, 16]},
    "rope_parameters": {**_ROPE, "mrope_section": [3, 3, 2]},
}

LANGUAGES: dict[str, Callable[[], Family]] = {
    "glm4v_moe_text": other("AutoModel", "glm4v_moe_text", rope_parameters=_HALF),
    "glm_image_text": other("AutoModel", "glm_image_text", rope_parameters=_ROPE, vision_vocab_size=64),
    "glm5_next_text": other("AutoModel", "glm5_next_text", **_NEXT),
    "glm5_next": other("AutoModelForImageTextToText", "glm5_next", labels=True, text_config=_NEXT),
    "dots3_note_text": other("AutoModelForCausalLM", "dots3_note_text", labels=True, **_NOTE),
    "dots3_note": other(
        "AutoModelForImageTextToText",
        "dots3_note",
        labels=True,
        text_config=_NOTE,
        vision_config={"adapter_in_dim": 16, "adapter_out_dim": 16, "mlp_layer_types": ["dense"] * 3},
        audio_config={"adapter_input_size": 16, "adapter_out_dim": 16},
    ),
    "mistral_large4_text": other("AutoModel", "mistral_large4_text", **_INDEXED),
    "mistral_large4": other("AutoModelForImageTextToText", "mistral_large4", labels=True, text_config=_INDEXED),
    "hunyuan_vl_text": other("AutoModel", "hunyuan_vl_text", rope_parameters={**_ROPE, "mrope_section": [1, 1, 0, 0]}),
    "hunyuan_vl": other(
        "AutoModelForImageTextToText",
        "hunyuan_vl",
        labels=True,
        text_config={"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 0, 0]}},
    ),
    "sam3_lite_text_text_model": other("AutoModel", "sam3_lite_text_text_model", inputs=texts_with()),
    "t5gemma2_encoder": other("AutoModel", "t5gemma2_encoder", text_config={"dropout_rate": 0.0}),
    "kimi_k25": other("AutoModelForImageTextToText", "kimi_k25", labels=True, text_config={**ONE_GROUP, "n_group": 2}),
    "qwen2_5_omni_thinker": other(
        "AutoModelForImageTextToText",
        "qwen2_5_omni_thinker",
        labels=True,
        vision_start_token_id=58,
        text_config={"rope_parameters": _ROPE},
    ),
    "qwen3_omni_moe_thinker": other(
        "AutoModelForImageTextToText",
        "qwen3_omni_moe_thinker",
        labels=True,
        vision_start_token_id=58,
        text_config={"rope_parameters": _ROPE},
    ),
    "cohere_compass": other("AutoModel", "cohere_compass", text_config=CAUSAL["cohere_compass_text"]),
    "muse_spark": other(
        "AutoModelForImageTextToText", "muse_spark", labels=True, audio_config=_HEARD, projector_hidden_size=16
    ),
    "step3p7": other(
        "AutoModelForImageTextToText", "step3p7", labels=True, text_config={"share_expert_dim": 16, "sliding_window": 4}
    ),
    "ernie4_5_vl_moe": other("AutoModelForImageTextToText", "ernie4_5_vl_moe", labels=True, text_config=_THREE),
    "glm_image": other("AutoModel", "glm_image", text_config={"rope_parameters": _ROPE, "vision_vocab_size": 64}),
    "muse_glimmer_assistant": other(
        "AutoModel",
        "muse_glimmer_assistant",
        inputs=given(
            noise_embeds=drawn(4, 16),
            context_hidden_states=drawn(7, 80),
            attention_mask=torch.ones(SAMPLES, 1, 4, 11, dtype=torch.bool),
        ),
        target_layer_ids=[0, 1, 2, 3, 4],
        block_size=4,
    ),
}
