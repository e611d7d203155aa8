"""Sizes of families of Hugging Face whose configurations have other names or more parts than most."""

from typing import Any

_MAMBA: dict[str, Any] = {
    **{"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 4}
}
_HYBRID: dict[str, Any] = {
    **{"num_hidden_layers": 4, "mamba_d_state": 8, "attention_head_dim": 8, "attention_hidden_size": 32},
    **{"use_mamba_kernels": False, "num_key_value_heads": 4},
}
_LATENT: dict[str, Any] = {
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4},
    **{"num_key_value_heads": 4, "n_routed_experts": 4},
}
ONE_GROUP: dict[str, Any] = {**_LATENT, "n_group": 1, "topk_group": 1}
_INDEXED: dict[str, Any] = {**ONE_GROUP, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2}
_LINEAR: dict[str, Any] = {"linear_head_dim": 4, "linear_num_heads": 4, "num_experts_per_token": 2}
_PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
CAUSAL: dict[str, dict[str, Any]] = {
    "axk1": ONE_GROUP,
    "axk2": _INDEXED,
    "bailing_hybrid": {
        **ONE_GROUP,
        **{"num_expert_group": 1, **_LINEAR, "layer_group_size": 3, "first_k_dense_replace": 1},
    },
    "cohere_compass_text": {
        **{"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        **{"rope_parameters": {"full_attention": _PLAIN, "sliding_attention": _PLAIN}},
    },
    "deepseek_v32": _INDEXED,
    "deepseek_v4": {
        **{"q_lora_rank": 8, "n_routed_experts": 4, "o_groups": 2, "o_lora_rank": 8, "num_key_value_heads": 1},
        **{"index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "head_dim": 16, "partial_rotary_factor": 0.25},
        **{"hc_mult": 2, "mlp_layer_types": ["hash_moe", "moe", "moe"]},
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
        "layer_types": [f"{each}_attention" for each in ("heavily_compressed", "compressed_sparse") * 2][:3],
    },
    "glm4_moe_lite": ONE_GROUP,
    "glm_moe_dsa": _INDEXED,
    "kimi_linear": {
        **{**ONE_GROUP, "num_expert_group": 1, **_LINEAR, "q_lora_rank": None},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "longcat_flash": {
        **{**ONE_GROUP, "ffn_hidden_size": 32, "expert_ffn_hidden_size": 16, "zero_expert_num": 2, "moe_topk": 2},
    },
    "minicpm3": {key: size for key, size in ONE_GROUP.items() if key != "n_routed_experts"},
    "recurrent_gemma": {"lru_width": 16},
    "xlnet": {"d_inner": 32, "d_head": 4, "use_mems_eval": False},
    "youtu": ONE_GROUP,
    "zamba": {
        **{**_HYBRID, "mamba_dt_rank": 4},
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"],
    },
    "zamba2": {
        **{**_HYBRID, "n_mamba_heads": 4, "mamba_headdim": 8, "chunk_size": 4},
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "prophetnet": {
        **{"num_encoder_layers": 3, "num_decoder_layers": 3},
        **{"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4},
    },
    "xlm": {"emb_dim": 16, "n_layers": 3},
    "bigbird_pegasus": {"attention_type": "original_full"},
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
    "esmc": {"num_key_value_heads": 4},
    "flaubert": {"emb_dim": 16, "n_layers": 3},
    "mobilebert": {"hidden_size": 16, "embedding_size": 8, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "mra": {"approx_mode": "full", "block_per_row": 1},
    "neomme": {
        **{"embedding_rank": 8, "embedding_dim": 16},
        **{"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "rope_parameters": {
            key: {**_PLAIN, "partial_rotary_factor": 1.0} for key in ("sliding_attention", "full_attention")
        },
    },
    "squeezebert": {
        **{"embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2},
        **{"post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2},
    },
    "big_bird": {"attention_type": "original_full"},
    "longformer": {"attention_window": 4},
    "xmod": {"default_language": "en_XX"},
}
"""Models that fill masked words in."""
TRANSLATORS: dict[str, dict[str, Any]] = {
    "led": {"attention_window": 4},
    "switch_transformers": {
        **{"router_jitter_noise": 0.0, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    },
}
"""Encoders of texts with a decoder."""
