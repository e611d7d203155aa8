"""Sizes of encoders of images whose layers become wider from stage to stage."""

from typing import Any

PYRAMIDS: dict[str, dict[str, Any]] = {
    "convnext": {"num_stages": 4, "patch_size": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "mobilevit": {
        **{"image_size": 64, "patch_size": 2, "hidden_sizes": [16, 16, 16]},
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
    },
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1], "num_groups": 4},
    "convnextv2": {"num_stages": 4, "patch_size": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "cvt": {
        **{"depth": [1, 2], "embed_dim": [8, 16], "num_heads": [1, 2], "mlp_ratio": [2.0, 2.0]},
        **{"patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1], "cls_token": [False, True]},
        **{key: [0.0, 0.0] for key in ("attention_drop_rate", "drop_rate", "drop_path_rate")},
        **{"qkv_projection_method": ["dw_bn", "dw_bn"], "qkv_bias": [True, True], "kernel_qkv": [3, 3]},
        **{"padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1]},
    },
    "donut-swin": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "efficientnet": {"hidden_dim": 320, "width_coefficient": 0.25, "depth_coefficient": 0.3},
    "focalnet": {
        **{"embed_dim": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "patch_size": 4},
        **{"focal_levels": [2, 2], "focal_windows": [3, 3]},
    },
    "hgnet_v2": {
        **{
            "embedding_size": 8,
            "stem_channels": [3, 8, 8],
            "stage_in_channels": [8, 16, 16, 16],
            "depths": [1, 1, 2, 1],
        },
        **{"stage_mid_channels": [8] * 4, "stage_out_channels": [16] * 4, "hidden_sizes": [16] * 4},
        **{"stage_numb_of_layers": [2] * 4, "stage_num_blocks": [1, 1, 2, 1]},
    },
    "hiera": {
        **{"embed_dim": 8, "image_size": (32, 32), "depths": [1, 2], "num_heads": [1, 2], "num_query_pool": 1},
        **{"patch_size": [7, 7], "masked_unit_size": [4, 4], "masked_unit_attention": [True, False]},
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "width_multiplier": 0.25},
    "poolformer": {
        **{"num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16]},
        **{"patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]},
    },
    "pp_lcnet": {"scale": 0.25, "class_expand": 16},
    "pvt": {
        **{"num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2]},
        **{"sequence_reduction_ratios": [2, 1], "patch_sizes": [4, 2], "strides": [4, 2], "mlp_ratios": [2, 2]},
    },
    "pvt_v2": {
        **{"image_size": (32, 32), "num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16]},
        **{"num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2]},
        "mlp_ratios": [2, 2],
    },
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1], "groups_width": 4},
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16]},
    "textnet": {"hidden_sizes": [8, 8, 16, 16, 16], "stem_out_channels": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "segformer": {
        **{"num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2]},
        **{"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]},
    },
    "swin": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "swinv2": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
}
"""Classifiers of images."""
ENCODERS: dict[str, dict[str, Any]] = {
    **{key: {} for key in ("aimv2_vision_model", "dpt", "mlcd_vision_model", "pixio")},
    **{key: {} for key in ("siglip_vision_model", "tipsv2_vision_model", "vitdet")},
    "vitdet": {"window_block_indices": [], "residual_block_indices": []},
    "yolos": {"image_size": (32, 32), "num_detection_tokens": 3},
    "dinov3_convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 1, 1]},
    "glpn": {
        **{"num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2]},
        **{"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]},
    },
}
"""Encoders of images without a classifier."""
