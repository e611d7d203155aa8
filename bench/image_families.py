"""Families of Hugging Face that read images or sounds with texts, with the inputs that their processors return."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import SAMPLES, Family, pixels
from bench.family_others import other

PLACEHOLDER = 60
"""The token in place of which the features of images come."""
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
_HALF = {**_ROPE, "mrope_section": [1, 0, 0], "partial_rotary_factor": 0.5}
TOWER: dict[str, Any] = {
    **{"patch_size": 4, "depth": 3, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2},
    "out_hidden_size": 16,
}
"""Sizes of a vision tower that takes the patches of all images in one dimension."""
TABLE: dict[str, Any] = {"num_position_embeddings": 16, "deepstack_visual_indexes": []}
_ALTERNATING = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_PATCHES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"grid": 8, "vision": {"window_size": 16, "fullatt_block_indexes": [1]}},
    "qwen3_vl": {"vision": {**TABLE, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_vl_moe": {"vision": {**TABLE, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_5": {"vision": TABLE, "text": _ALTERNATING},
    "qwen3_5_moe": {"vision": TABLE, "text": _ALTERNATING},
    **{name: {"rope": _HALF, "vision": {"image_size": 16}} for name in ("glm4v", "glm46v", "glm4v_moe", "glm_ocr")},
    **{name: {"rope": None} for name in ("cosmos3_omni", "exaone4_5", "hyperclovax_vision_v2")},
}
"""Families that take the patches of all images in one dimension, with their sizes."""


def _drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def with_words(features: int, images: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return texts with placeholders for the features of one image each, and these images."""
    text = torch.randint(3, 50, (SAMPLES, features + 8), generator=torch.Generator().manual_seed(0))
    labels = text.clone()
    text[:, 1], text[:, 2 : 2 + features], text[:, 2 + features] = 58, PLACEHOLDER, 59
    labels[:, 1 : 3 + features] = -100
    return {"input_ids": text, "attention_mask": torch.ones_like(text), **images, "labels": labels}


def patches(name: str, grid: int = 4, rope: Any = _ROPE, vision: Any = None, text: Any = None) -> Callable[[], Family]:
    """Return the builder of a model that takes the patches of all images in one dimension.

    Args:
        name: of its family.
        grid: patches in each direction.
        rope: of its text model; None for the usual one.
        vision: sizes of its vision tower.
        text: sizes of its text model.
    """

    def inputs(model: Any) -> dict[str, Tensor]:
        del model
        images = {
            "pixel_values": _drawn(SAMPLES * grid**2, 96),
            "image_grid_thw": torch.tensor([[1, grid, grid]] * SAMPLES),
        }
        found = with_words(grid**2 // 4, images)
        kinds = {"mm_token_type_ids": (found["input_ids"] == PLACEHOLDER).long()}
        return found | ({} if name in ("exaone4_5", "hyperclovax_vision_v2") else kinds)

    words: dict[str, Any] = {"video_token_id": 61, "vision_start_token_id": 58, "vision_end_token_id": 59}
    words |= {"image_start_token_id": 58, "image_end_token_id": 59}
    return other(
        "AutoModelForImageTextToText",
        name,
        inputs=inputs,
        image_token_id=PLACEHOLDER,
        text_config={**({"rope_parameters": rope} if rope else {}), **(text or {})},
        vision_config={**TOWER, **(vision or {})},
        **words,
    )


def _fill(model: Any) -> None:
    # Gemma 3 begins with a projection of zeros, which no gradient of the vision tower would pass.
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() > 1 and not each.any():
                each.normal_(std=0.1, generator=draw)


def whole_images(
    name: str, add: Callable[[Tensor], dict[str, Tensor]] | None = None, listed: bool = False, **more: Any
) -> Callable[[], Family]:
    """Return the builder of a model that takes one image of each sample.

    Args:
        name: of its family.
        add: returns further inputs, given the words.
        listed: whether a sample has a list of images.
        more: sizes.
    """

    def inputs(model: Any) -> dict[str, Tensor]:
        _fill(model)
        find = getattr(model, "get_image_features", None) or model.model.get_image_features
        images = pixels()[:, None] if listed else pixels()
        with torch.no_grad():
            features = find(pixel_values=images).pooler_output
        counted = features if isinstance(features, Tensor) else torch.cat([each.flatten(0, -2) for each in features])
        found = with_words(counted.numel() // counted.shape[-1] // SAMPLES, {"pixel_values": images})
        return found | (add(found["input_ids"]) if add else {})

    return other("AutoModelForImageTextToText", name, inputs=inputs, image_token_id=PLACEHOLDER, **more)


def _in_images(text: Tensor) -> dict[str, Tensor]:
    return {"token_type_ids": (text == PLACEHOLDER).long()}


def _after_images(text: Tensor) -> dict[str, Tensor]:
    # The words after the prompt, which do not attend to later words.
    return {"token_type_ids": (torch.arange(text.shape[1]) >= text.shape[1] - 4).long().expand_as(text).contiguous()}


_IMAGES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            *("aya_vision", "cohere2_vision", "deepseek_vl", "got_ocr2", "internvl", "janus", "pp_chart2table"),
            *("qianfan_ocr", "video_llava"),
        )
    },
    **{name: {"add": _in_images, "mm_tokens_per_image": 4} for name in ("gemma3", "shieldgemma2")},
    **{name: {"listed": True} for name in ("idefics2", "idefics3", "smolvlm")},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "paligemma": {"add": _after_images},
    "vipllava": {"vision_feature_layer": [-1, -2]},
}
"""Families that take one image of each sample, with their sizes."""
WITH_IMAGES: dict[str, Callable[[], Family]] = {
    **{name: patches(name, **sizes) for name, sizes in _PATCHES.items()},
    **{name: whole_images(name, **sizes) for name, sizes in _IMAGES.items()},
}
"""In place of the same families without images."""
