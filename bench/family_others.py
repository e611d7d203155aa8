"""Builders of tiny models of Hugging Face that read several kinds of input, or return something other than classes."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import LAYERS, SAMPLES, SIZES, Family, library, pixels, tiny, words

MORE: dict[str, Any] = {
    **dict.fromkeys(("depth", "encoder_num_hidden_layers", "decoder_num_hidden_layers", "encoder_num_layers"), LAYERS),
    **dict.fromkeys(("embed_dim", "encoder_hidden_size", "decoder_hidden_size", "mm_hidden_size", "output_dim"), 16),
    **dict.fromkeys(("out_hidden_size", "projection_hidden_size", "text_hidden_size", "vision_hidden_size"), 16),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads", "attention_head_size"), 4),
    **dict.fromkeys(("decoder_num_key_value_heads", "encoder_num_key_value_heads", "moe_topk"), 2),
    **dict.fromkeys(("feature_size", "input_feat_per_channel", "n_mels", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("encoder_intermediate_size", "decoder_intermediate_size"), 32),
    **{"n_audio_state": 16, "qformer_hidden_size": 16, "num_queries": 5, "moe_num_experts": 4, "n_routed_experts": 4},
}
"""Sizes beside `SIZES`, for these families."""
BANDS_FIRST = (
    *("audioflamingo3_encoder", "glmasr_encoder", "moss_transcribe_diarize_audio", "qwen2_audio_encoder"),
    *("voxtral_encoder", "voxtral_realtime_encoder"),
)
"""Encoders of sounds whose spectrograms have frequencies before times."""


def other(kind: str, name: str, *, labels: bool = False, inputs: Any = None, **more: Any) -> Callable[[], Family]:
    """Return the builder of a model with inputs of the kind that its forward names as the main one.

    Args:
        kind: of its automatic class, or its own class.
        name: of its family.
        labels: give texts as labels.
        inputs: instead of those inputs, a function of the model that returns them.
        more: sizes.
    """

    def build() -> Family:
        made = getattr(library, kind)
        model = getattr(made, "from_config", made)(tiny(name, known={**SIZES, **MORE}, **more))
        found = inputs(model) if inputs else _inputs(model)
        return model, found | ({"labels": words()} if labels else {})

    return build


def _inputs(model: Any) -> dict[str, Tensor]:
    parameters = inspect.signature(model.forward).parameters
    match model.main_input_name:
        case "pixel_values":
            size: Any = getattr(model.config, "image_size", 64)
            found = {"pixel_values": pixels(min(size if isinstance(size, int) else size[0], 128))}
        case "input_features":
            shape = (8, 32) if model.config.model_type in BANDS_FIRST else (32, 8)
            found = {"input_features": torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))}
        case "input_values":
            found = {"input_values": torch.randn(SAMPLES, 2000, generator=torch.Generator().manual_seed(0))}
        case "pixel_values_videos":
            found = {
                "pixel_values_videos": torch.randn(SAMPLES, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
            }
        case _:
            found = {"input_ids": words(), "attention_mask": torch.ones_like(words())}
    decodes = "decoder_input_ids" in parameters and "labels" not in parameters
    return found | ({"decoder_input_ids": words()} if decodes else {})


def masked_prefix(model: Any) -> dict[str, Tensor]:
    """Return texts in which no word belongs to a prompt."""
    del model
    return {
        "input_ids": words(),
        "attention_mask": torch.ones_like(words()),
        "token_type_ids": torch.ones_like(words()),
    }


def detector(kind: str, name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a detector of objects that looks at the last layers of a small ResNet."""

    def build() -> Family:
        levels = more.get("num_feature_levels", 1)
        outputs = [f"stage{number}" for number in range(5 - max(1, levels - 1), 5)]
        backbone = library.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=outputs
        )
        sizes: dict[str, Any] = {
            "use_timm_backbone": False,
            "backbone_config": backbone,
            "backbone": None,
            "num_queries": 5,
            **more,
            "d_model": 32,
        }
        config = tiny(name, use_pretrained_backbone=False, **sizes)
        return getattr(library, kind)(config), {"pixel_values": pixels(64)}

    return build


def text_to_text(model: Any) -> dict[str, Tensor]:
    """Return texts for an encoder and for a decoder."""
    del model
    return {"input_ids": words(), "attention_mask": torch.ones_like(words()), "decoder_input_ids": words()}


def encoder_decoder() -> Family:
    """Return a BERT that a second BERT reads."""
    decoder = tiny("bert", is_decoder=True, add_cross_attention=True)
    config = library.EncoderDecoderConfig.from_encoder_decoder_configs(tiny("bert"), decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    return library.EncoderDecoderModel(config), text_to_text(None) | {"labels": words()}


def speech_encoder_decoder() -> Family:
    """Return a Wav2Vec2 that a GPT-2 reads."""
    shape: dict[str, Any] = {
        "conv_dim": (16, 16),
        "conv_kernel": (4, 4),
        "conv_stride": (2, 2),
        "num_feat_extract_layers": 2,
    }
    groups: dict[str, Any] = {
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "apply_spec_augment": False,
    }
    decoder = tiny("gpt2", add_cross_attention=True, is_decoder=True)
    config = library.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
        tiny("wav2vec2", **shape, **groups), decoder
    )
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    waves = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(0))
    inputs = {"input_values": waves, "decoder_input_ids": words(), "labels": words()}
    return library.SpeechEncoderDecoderModel(config), inputs
