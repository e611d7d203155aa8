"""Inputs of tiny models of Hugging Face: drawn once, one row for each sample."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import LAYERS, SAMPLES, pixels, words

Inputs = Callable[[Any], dict[str, Tensor]]


def drawn(*shape: int) -> Tensor:
    """Return values of a normal distribution, of a shape [samples, ...]."""
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def given(**tensors: Tensor) -> Inputs:
    """Return a function of a model that returns these inputs for each model."""
    return lambda model: dict(tensors)


def sizes(found: dict[str, Any]) -> dict[str, Any]:
    """Return sizes, as keyword arguments of any type."""
    return found


def images(size: int = 32) -> Inputs:
    """Return images alone, of a height and width in pixels."""
    return given(pixel_values=pixels(size))


def texts_with(**tensors: Tensor) -> Inputs:
    """Return texts with a mask, and further inputs."""
    return given(input_ids=words(), attention_mask=torch.ones_like(words()), **tensors)


def placeholders(count: int, token: int) -> dict[str, Tensor]:
    """Return texts that begin with places for features of an image or a sound, with a mask."""
    text = torch.cat([words()[:, :1], torch.full((SAMPLES, count), token), words()], 1)
    return {"input_ids": text, "attention_mask": torch.ones_like(text)}


def labelled(count: int, token: int, **tensors: Tensor) -> Inputs:
    """Return texts as `placeholders` does, the same as labels, and further inputs."""
    texts = placeholders(count, token)
    return given(**texts, labels=texts["input_ids"], **tensors)


def resnet(*outputs: int) -> dict[str, Any]:
    """Return the configuration of a small ResNet that returns some of its four stages."""
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    return {"model_type": "resnet", **sizes, "out_features": [f"stage{number}" for number in outputs]}


def swin(*outputs: int, width: int = 8) -> dict[str, Any]:
    """Return the configuration of a small Swin that returns some of its four stages."""
    shape: dict[str, Any] = {"embed_dim": width, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2], "window_size": 2}
    plain: dict[str, Any] = {"drop_path_rate": 0.0, "hidden_dropout_prob": 0.0, "image_size": 64}
    return {"model_type": "swin", **shape, **plain, "out_features": [f"stage{number}" for number in outputs]}


def transformer_of_images(kind: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a small vision transformer."""
    sizes = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 32}
    return {"model_type": kind, **sizes, "image_size": 32, "patch_size": 8, "mlp_ratio": 2} | more
