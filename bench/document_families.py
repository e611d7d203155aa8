"""Families of Hugging Face that read documents: their layout, lines of text, tables and formulas."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import SAMPLES, Family, pixels, words
from bench.family_inputs import drawn, given, images, sizes, transformer_of_images
from bench.family_others import other

GRAPHED: dict[str, Any] = {
    **{"model_type": "hgnet_v2", "embedding_size": 8, "stem_channels": [3, 8, 8], "depths": [1, 1, 2, 1]},
    **{"stage_in_channels": [8, 16, 16, 16], "stage_mid_channels": [8] * 4, "stage_out_channels": [16] * 4},
    **{"hidden_sizes": [16] * 4, "stage_numb_of_layers": [2] * 4, "stage_num_blocks": [1, 1, 2, 1]},
}
"""A small backbone."""
_ALL: dict[str, Any] = {**GRAPHED, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
_LAYOUT: dict[str, Any] = {
    **{"encoder_hidden_dim": 16, "encoder_in_channels": [16] * 3, "encoder_layers": 1, "encode_proj_layers": [2]},
    **{"decoder_in_channels": [16] * 3, "num_queries": 5, "num_denoising": 0, "global_pointer_head_size": 8},
}
_MASKED = {"x4_feat_dim": 16, "mask_feature_channels": [8, 8], "num_prototypes": 4}
_KERNELS: dict[str, Any] = {
    **{"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]},
    **{
        f"{kind}_{ratio}ratio": [[*shape], [1, 1], [shape[0] // 2, shape[1] // 2]]
        for ratio, size in (("long", 7), ("mid", 5), ("short", 3))
        for kind, shape in (
            ("vertical_long_to_small_conv", (size, 1)),
            ("horizontal_small_to_long_conv", (1, size)),
            ("symmetric_conv_long", (size, size)),
        )
    },
}
_SERVER: dict[str, Any] = {
    **{"neck_out_channels": 16, "intraclass_block_config": _KERNELS, "kernel_list": [3, 2, 2]},
    **{"scale_factor_list": [1, 2, 4, 8], "backbone_config": _ALL},
}
_LINES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 4, "head_out_channels": 20}
_SMALL: dict[str, Any] = {
    **{"model_type": "pp_lcnet", "scale": 0.25, "divisor": 4},
    "out_features": ["stage2", "stage3", "stage4", "stage5"],
}
_STAGES: dict[str, Any] = {
    "stem_channels": [3, 8, 8],
    "block_configs": [
        [[3, 8, 8, 1, True]],
        [[3, 8, 8, 2, False]],
        [[3, 8, 16, 2, False], [3, 16, 16, 1, True]],
        [[3, 16, 16, 2, False]],
    ],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
"""A small PP-LCNet: size of the kernel, channels before and after, stride, and whether it has weights of channels."""
_CURVED: dict[str, Any] = {
    **{"model_type": "uvdoc_backbone", "resnet_head": [[3, 8], [8, 8]], "stage_configs": [[[8, 1]], [[8, 2]]]},
    **{
        "resnet_configs": [[[8, 8, 1, False]], [[8, 8, 1, True], [8, 8, 3, False]]],
        "out_features": ["stage1", "stage2"],
    },
}
_DPT: dict[str, Any] = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}
_FORMULA: dict[str, Any] = {
    **{"image_size": 64, "patch_size": 8, "output_channels": 16, "mlp_dim": 32, "post_conv_in_channels": 16},
    **{"post_conv_mid_channels": 16, "post_conv_out_channels": 16, "decoder_hidden_size": 16},
    **{"global_attn_indexes": [1], "window_size": 4},
}


def _patches() -> Tensor:
    # Each begins with its row and its column.
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).repeat(SAMPLES, 1, 1)
    return torch.cat([places, drawn(16, 8)], -1)


DOCUMENTS: dict[str, Callable[[], Family]] = {
    "pp_ocrv5_mobile_det": other(
        "AutoModelForObjectDetection",
        "pp_ocrv5_mobile_det",
        inputs=images(64),
        backbone_config={**_SMALL, "model_type": "pp_lcnet_v3"},
    ),
    "pp_ocrv5_server_det": other("AutoModelForObjectDetection", "pp_ocrv5_server_det", inputs=images(64), **_SERVER),
    "pp_ocrv6_medium_det": other(
        "AutoModelForObjectDetection",
        "pp_ocrv6_medium_det",
        inputs=images(64),
        **sizes({**_SERVER, "backbone_config": _STAGES}),
    ),
    "pp_ocrv6_small_det": other(
        "AutoModelForObjectDetection",
        "pp_ocrv6_small_det",
        inputs=images(64),
        backbone_config=_STAGES,
        **sizes({"neck_out_channels": 16, "layer_list_out_channels": [8, 8, 16, 16]}),
    ),
    "pp_ocrv5_mobile_rec": other(
        "AutoModelForTextRecognition", "pp_ocrv5_mobile_rec", inputs=given(pixel_values=drawn(3, 96, 96)), **_LINES
    ),
    "pp_ocrv5_server_rec": other(
        "AutoModelForTextRecognition",
        "pp_ocrv5_server_rec",
        inputs=given(pixel_values=drawn(3, 96, 96)),
        backbone_config=_ALL,
        **_LINES,
    ),
    "pp_formulanet": other(
        "AutoModelForImageTextToText",
        "pp_formulanet",
        inputs=given(pixel_values=pixels(64), decoder_input_ids=words(), labels=words()),
        vision_config=_FORMULA,
    ),
    "uvdoc": other(
        "AutoModel",
        "uvdoc",
        inputs=images(128),
        backbone_config=_CURVED,
        bridge_connector=[8, 8],
        out_point_positions2D=[[8, 8], [8, 2]],
    ),
    "tipsv2_dpt": other(
        "AutoModelForDepthEstimation",
        "tipsv2_dpt",
        inputs=images(),
        backbone_config=transformer_of_images("tipsv2_vision_model", **_DPT, reshape_hidden_states=False),
        **sizes({"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8, "num_depth_bins": 8}),
    ),
    "chmv2": other(
        "AutoModelForDepthEstimation",
        "chmv2",
        inputs=images(),
        backbone_config=transformer_of_images(
            "dinov3_vit", **_DPT, num_register_tokens=1, return_class_token=True, pos_embed_rescale=None
        ),
        **sizes(
            {"patch_size": 8, "post_process_channels": [8, 8, 16, 16], "fusion_hidden_size": 8, "head_hidden_size": 8}
        ),
        number_output_channels=8,
    ),
    "pix2struct": other(
        "AutoModelForImageTextToText",
        "pix2struct",
        inputs=given(flattened_patches=_patches(), decoder_input_ids=words(), labels=words()),
        vision_config={"patch_embed_hidden_size": 8, "seq_len": 16},
    ),
    "pp_doclayout_v2": other(
        "AutoModelForObjectDetection",
        "pp_doclayout_v2",
        inputs=images(64),
        backbone_config={**GRAPHED, "out_features": ["stage2", "stage3", "stage4"]},
        reading_order_config={"coordinate_size": 2, "shape_size": 4},
        **_LAYOUT,
        **sizes({"class_thresholds": [0.5, 0.5], "class_order": [0, 1]}),
    ),
    "pp_doclayout_v3": other(
        "AutoModelForObjectDetection",
        "pp_doclayout_v3",
        inputs=images(64),
        backbone_config=_ALL,
        **_LAYOUT,
        **sizes(_MASKED),
    ),
    "pp_doclayout_v4": other(
        "AutoModelForObjectDetection",
        "pp_doclayout_v4",
        inputs=images(64),
        backbone_config={**GRAPHED, "out_features": ["stage2", "stage3", "stage4"]},
        **_LAYOUT,
    ),
}
