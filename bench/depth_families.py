"""Families of Hugging Face that estimate depth, poses or what covers a pixel."""

from collections.abc import Callable
from typing import Any

from bench.family_builders import Family
from bench.family_inputs import drawn, given, images, sizes, transformer_of_images
from bench.family_others import other

_FOUR = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}
_NECK: dict[str, Any] = {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8, "patch_size": 8}
_DINO = transformer_of_images("dinov2", **_FOUR)
_POSE: dict[str, Any] = {"image_size": [32, 32], "patch_size": [8, 8], "part_features": 8, "num_experts": 1}
_BODY = {key: size for key, size in transformer_of_images("vitpose_backbone").items() if key not in _POSE}

DEPTHS: dict[str, Callable[[], Family]] = {
    "depth_anything": other(
        "AutoModelForDepthEstimation",
        "depth_anything",
        inputs=images(),
        **sizes({"backbone_config": _DINO, **_NECK, "reassemble_hidden_size": 16, "head_hidden_size": 8}),
    ),
    "prompt_depth_anything": other(
        "AutoModelForDepthEstimation",
        "prompt_depth_anything",
        inputs=given(**images()(None), prompt_depth=drawn(1, 8, 8)),
        **sizes({"backbone_config": _DINO, **_NECK, "reassemble_hidden_size": 16, "head_hidden_size": 8}),
    ),
    "vitpose": other(
        "AutoModelForPoseEstimation",
        "vitpose",
        inputs=images(),
        backbone_config={**_BODY, **_POSE, "out_indices": [3]},
    ),
    "vitpose_backbone": other("AutoBackbone", "vitpose_backbone", inputs=images(), **_POSE),
    "vitmatte": other(
        "AutoModelForImageMatting",
        "vitmatte",
        inputs=given(pixel_values=drawn(4, 32, 32)),
        backbone_config=transformer_of_images("vitdet", patch_size=16, num_channels=4, out_features=["stage3"]),
        **sizes({"hidden_size": 16, "convstream_hidden_sizes": [8, 8, 8], "fusion_hidden_sizes": [16, 8, 8, 8]}),
    ),
}
