"""Vision towers of Hugging Face, by themselves, that take the patches of all images in one dimension."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import SAMPLES, Family
from bench.family_others import other
from bench.image_families import TABLE, TOWER

_WINDOWS: dict[str, Any] = {"window_size": 16, "fullatt_block_indexes": [1]}
_DEEP: dict[str, Any] = {**TABLE, "deepstack_visual_indexes": [0, 1]}
_GRID: dict[str, Any] = {"num_position_embeddings": 16}
_PLACES: dict[str, Any] = {"patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4}
_TOWERS: dict[str, dict[str, Any]] = {
    "cohere_compass_vision": {**TOWER, **_DEEP},
    "exaone4_5_vision": {**TOWER, **_WINDOWS},
    **{name: {**TOWER, "image_size": 16} for name in ("glm4v_vision", "glm4v_moe_vision", "glm_ocr_vision")},
    "glm5_next_vision": {**TOWER, "image_size": 16, "projection_intermediate_size": 16},
    "qwen2_5_vl_vision": {**TOWER, **_WINDOWS},
    **{name: {**TOWER, **_DEEP} for name in ("qwen3_vl_vision", "qwen3_vl_moe_vision")},
    **{name: {**TOWER, **_GRID} for name in ("qwen3_5_vision", "qwen3_5_moe_vision", "qwen4_exp_vision")},
    "muse_glimmer_vision": {"patch_temporal": 2, **_PLACES},
}
"""With patches of two frames."""


def tower(name: str, *shape: int, grid: int = 8, **sizes: Any) -> Callable[[], Family]:
    """Return the builder of a vision tower by itself.

    Args:
        name: of its family.
        shape: of a patch.
        grid: patches in each direction.
        sizes: of the tower.
    """

    def inputs(model: Any) -> dict[str, Tensor]:
        parameters = [*inspect.signature(model.forward).parameters]
        patches = torch.randn(SAMPLES * grid**2, *shape, generator=torch.Generator().manual_seed(0))
        return {parameters[0]: patches, "grid_thw": torch.tensor([[1, grid, grid]] * SAMPLES)}

    return other("AutoModel", name, inputs=inputs, **sizes)


TOWERS: dict[str, Callable[[], Family]] = {
    **{name: tower(name, 96, **sizes) for name, sizes in _TOWERS.items()},
    "glm_image_vision": tower("glm_image_vision", 48, patch_size=4, image_size=16),
    "kimi_k25_vision": tower("kimi_k25_vision", 3, 4, 4, **_PLACES),
}
