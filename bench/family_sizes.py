"""Sizes of families of Hugging Face whose configurations have other names or more parts than most."""

from typing import Any

_MAMBA: dict[str, Any] = {
    **{"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 4}
}
_LATENT: dict[str, Any] = {
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4},
    **{"num_key_value_heads": 4, "n_routed_experts": 4},
}
CAUSAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], **_MAMBA},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, **_LATENT},
    "deepseek_v3": {"n_group": 2, "topk_group": 1, **_LATENT},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {
        **{"layer_types": ["sliding_attention", "full_attention", "full_attention"], "num_kv_shared_layers": 1},
        **{"activation_sparsity_pattern": [0.0] * 3, "intermediate_size": [32] * 3, "laurel_rank": 4},
        **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
    },
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"], **_MAMBA},
    "mamba2": {"num_heads": 8, "head_dim": 4, "expand": 2, "n_groups": 2, "state_size": 8, "chunk_size": 4},
    "phimoe": {"router_jitter_noise": 0.0},
    "qwen3_next": {
        **{"linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2},
        **{"linear_num_value_heads": 4, "shared_expert_intermediate_size": 16},
    },
    "xlstm": {"num_blocks": 3},
}
"""Models of language. The noise of phimoe's routers is off, because random numbers cannot be compared."""
MASKED: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "longformer": {"attention_window": 4},
    "xmod": {"default_language": "en_XX"},
}
"""Models that fill masked words in."""
PYRAMIDS: dict[str, dict[str, Any]] = {
    "convnext": {"num_stages": 4, "patch_size": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "mobilevit": {
        **{"image_size": 64, "patch_size": 2, "hidden_sizes": [16, 16, 16]},
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "segformer": {
        **{"num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2]},
        **{"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]},
    },
    "swin": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "swinv2": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
}
"""Classifiers of images whose layers become wider from stage to stage."""
