"""Families of Hugging Face as tiny models without downloads, each with an example batch."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig

SAMPLES, LENGTH, WORDS, LAYERS = 4, 7, 60, 3
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim"), 32),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **{"num_key_value_heads": 2, "head_dim": 4, "d_kv": 4, "rotary_dim": 4, "vocab_size": 64},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 16, "image_size": 32, "patch_size": 8},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "layerdrop": 0.0},
}
"""Sizes by name of a configuration's attribute, as the families call them."""
Family = tuple[nn.Module, dict[str, Tensor]]


def tiny(name: str, **more: Any) -> PreTrainedConfig:
    """Return the configuration of a family, with those of SIZES that it has."""
    kind = CONFIG_MAPPING[name]
    plain = kind()
    renamed: dict[str, str] = getattr(plain, "attribute_map", {})
    known = {key: size for key, size in SIZES.items() if hasattr(plain, key) and key not in renamed}
    known |= {target: SIZES[key] for key, target in renamed.items() if key in SIZES}
    settable = {key: size for key, size in known.items() if not isinstance(getattr(kind, key, None), property)}
    layer_types = {"layer_types": None} if getattr(plain, "layer_types", None) else {}
    return kind(**{**settable, **layer_types, **more})


def words() -> Tensor:
    """Return texts."""
    return torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))


def texts() -> dict[str, Tensor]:
    """Return texts with a mask and labels."""
    return {"input_ids": words(), "attention_mask": torch.ones_like(words()), "labels": words()}


def causal(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a model of language."""
    return lambda: (transformers.AutoModelForCausalLM.from_config(tiny(name, **more)), texts())


def masked(name: str) -> Callable[[], Family]:
    """Return the builder of a model that fills masked words in."""
    return lambda: (transformers.AutoModelForMaskedLM.from_config(tiny(name)), texts())


def translator(name: str) -> Callable[[], Family]:
    """Return the builder of an encoder-decoder."""

    def build() -> Family:
        config = tiny(name)
        config.decoder_start_token_id = 1
        return transformers.AutoModelForSeq2SeqLM.from_config(config), texts()

    return build


def images(name: str) -> Callable[[], Family]:
    """Return the builder of a classifier of images."""

    def build() -> Family:
        pixels = torch.randn(SAMPLES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        model = transformers.AutoModelForImageClassification.from_config(tiny(name))
        return model, {"pixel_values": pixels, "labels": torch.arange(SAMPLES) % 2}

    return build


FAMILIES: dict[str, Callable[[], Family]] = {
    **{name: causal(name) for name in ("mistral", "mixtral", "qwen3", "gemma2", "phi3", "gpt_neox", "falcon", "olmo2")},
    "modernbert": masked("modernbert"),
    "t5": translator("t5"),
    "bart": translator("bart"),
    "dinov2": images("dinov2"),
}
