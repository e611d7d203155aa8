"""Builders of tiny models of Hugging Face with random weights, each with an example batch."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

library: Any = transformers
"""Its configurations are not typed as they are called."""
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
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64, "projection_dim": 16},
}
"""Sizes by name of a configuration's attribute, as the families call them."""
Family = tuple[nn.Module, dict[str, Tensor]]


def tiny(name: str, *, known: dict[str, Any] = SIZES, **more: Any) -> Any:
    """Return the configuration of a family, with those of the known sizes that it has, and without dropout."""
    return _tiny(library.CONFIG_MAPPING[name], known, more)


def _tiny(kind: type[Any], sizes: dict[str, Any], more: dict[str, Any]) -> Any:
    # The configurations of its parts are tiny, too. A dictionary in `more` has sizes of such a part.
    plain = kind()
    renamed: dict[str, str] = getattr(plain, "attribute_map", {})
    known = {key: size for key, size in sizes.items() if _has(plain, key) and key not in renamed}
    known |= {target: sizes[key] for key, target in renamed.items() if key in sizes}
    settable = {key: size for key, size in known.items() if _is_settable(plain, key)}
    settable |= {key: 0.0 for key, size in vars(plain).items() if "drop" in key and isinstance(size, float)}
    for key in ("layer_types", "mlp_layer_types", "indexer_types", "per_layer_config"):
        if vars(plain).get(key) and _is_settable(plain, key, lists=True):
            settable[key] = None  # otherwise one for each of the usual number of layers
    parts = {key: getattr(plain, key, None) for key in getattr(kind, "sub_configs", {})}
    for key, part in parts.items():
        own = more.get(key, {})
        if part is not None and isinstance(own, dict):
            settable[key] = _tiny(type(part), sizes, own).to_dict()
    whole = {key: each for key, each in more.items() if not (key in settable and key in parts)}
    return kind(**{**settable, **whole})


def _has(plain: Any, key: str) -> bool:
    # A size that differs from layer to layer raises an error of its own.
    try:
        return hasattr(plain, key)
    except Exception:
        return True


def _is_settable(plain: Any, key: str, *, lists: bool = False) -> bool:
    listed = isinstance(vars(plain).get(key), list | tuple)
    return (lists or not listed) and not isinstance(getattr(type(plain), key, None), property)


def words() -> Tensor:
    """Return texts."""
    return torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))


def texts() -> dict[str, Tensor]:
    """Return texts with a mask and labels."""
    return {"input_ids": words(), "attention_mask": torch.ones_like(words()), "labels": words()}


def causal(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a model of language."""
    return lambda: (library.AutoModelForCausalLM.from_config(tiny(name, **more)), texts())


def masked(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a model that fills masked words in."""
    return lambda: (library.AutoModelForMaskedLM.from_config(tiny(name, **more)), texts())


def translator(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of an encoder-decoder."""

    def build() -> Family:
        config = tiny(name, **more)
        config.decoder_start_token_id = 1
        return library.AutoModelForSeq2SeqLM.from_config(config), texts()

    return build


def images(name: str, kind: str = "AutoModelForImageClassification", **more: Any) -> Callable[[], Family]:
    """Return the builder of a classifier of images."""

    def build() -> Family:
        made = getattr(library, kind)
        model = getattr(made, "from_config", made)(tiny(name, **more))
        return model, {"pixel_values": pixels(_size(more)), "labels": torch.arange(SAMPLES) % 2}

    return build


def _size(sizes: dict[str, Any]) -> int:
    found: Any = sizes.get("image_size", 32)
    return found if isinstance(found, int) else found[0]


def encoder(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of an encoder of images."""
    return lambda: (library.AutoModel.from_config(tiny(name, **more)), {"pixel_values": pixels(_size(more))})


def text_encoder(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of an encoder of texts."""
    inputs = {"input_ids": words(), "attention_mask": torch.ones_like(words())}
    return lambda: (library.AutoModel.from_config(tiny(name, **more)), inputs)


def videos(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a classifier of videos."""

    def build() -> Family:
        model = library.AutoModelForVideoClassification.from_config(tiny(name, num_frames=4, **more))
        frames = torch.randn(SAMPLES, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        return model, {"pixel_values": frames, "labels": torch.arange(SAMPLES) % 2}

    return build


def sounds(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a classifier of waves."""
    shape = {"conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    groups = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16}

    def build() -> Family:
        model = library.AutoModelForAudioClassification.from_config(
            tiny(name, **shape, **groups, apply_spec_augment=False, **more)
        )
        waves = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(0))
        return model, {"input_values": waves, "labels": torch.arange(SAMPLES) % 2}

    return build


def two_towers(name: str, kind: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a model that compares texts with images."""

    def build() -> Family:
        config = library.CONFIG_MAPPING[name](
            text_config=tiny(f"{name}_text_model").to_dict(),
            vision_config=tiny(f"{name}_vision_model").to_dict(),
            **more,
        )
        inputs = {"input_ids": words(), "attention_mask": torch.ones_like(words()), "pixel_values": pixels()}
        return getattr(transformers, kind)(config), inputs

    return build


def pixels(size: int = 32) -> Tensor:
    """Return images."""
    return torch.randn(SAMPLES, 3, size, size, generator=torch.Generator().manual_seed(0))


def whisper() -> Family:
    """Return an encoder of sounds with a decoder of words."""
    model = library.WhisperForConditionalGeneration(tiny("whisper"))
    sounds = torch.randn(SAMPLES, 8, 32, generator=torch.Generator().manual_seed(0))
    return model, {"input_features": sounds, "decoder_input_ids": words(), "labels": words()}


def spectrograms() -> Family:
    """Return a classifier of spectrograms."""
    sizes: dict[str, Any] = {"max_length": 32, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4}
    model = library.ASTForAudioClassification(tiny("audio-spectrogram-transformer", **sizes))
    inputs = torch.randn(SAMPLES, 32, 16, generator=torch.Generator().manual_seed(0))
    return model, {"input_values": inputs, "labels": torch.arange(SAMPLES) % 2}


def captions() -> Family:
    """Return an encoder of images with a decoder of words."""
    decoder = tiny("gpt2", add_cross_attention=True, is_decoder=True)
    config = library.VisionEncoderDecoderConfig.from_encoder_decoder_configs(tiny("vit"), decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    model = library.VisionEncoderDecoderModel(config)
    return model, {"pixel_values": pixels(), "decoder_input_ids": words(), "labels": words()}


def objects() -> Family:
    """Return a detector of objects."""
    backbone = library.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    sizes: dict[str, Any] = {
        "use_timm_backbone": False,
        "backbone_config": backbone,
        "backbone": None,
        "num_queries": 5,
    }
    model = library.DetrForObjectDetection(tiny("detr", **sizes, use_pretrained_backbone=False))
    return model, {"pixel_values": pixels(64)}


def llava() -> Family:
    """Return a Llama whose texts contain the features of images."""
    config = library.LlavaConfig(
        vision_config=tiny("clip_vision_model"), text_config=tiny("llama"), image_token_index=WORDS, image_seq_length=16
    )
    text = torch.randint(3, WORDS, (SAMPLES, 24), generator=torch.Generator().manual_seed(0))
    text[:, 2:18] = WORDS
    inputs = {"input_ids": text, "attention_mask": torch.ones_like(text), "pixel_values": pixels(), "labels": text}
    return library.LlavaForConditionalGeneration(config), inputs


def qwen2_vl() -> Family:
    """Return a Qwen2 whose texts contain the features of patches."""
    vision = {"depth": LAYERS, "embed_dim": 16, "num_heads": 2, "hidden_size": 16, "patch_size": 4, "mlp_ratio": 2}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
    config = library.Qwen2VLConfig(
        vision_config={**vision, "spatial_merge_size": 2, "temporal_patch_size": 2},
        text_config=tiny("qwen2_vl_text", rope_parameters=rope).to_dict(),
        **{"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 58, "vision_end_token_id": 59},
    )
    text = torch.randint(3, 58, (SAMPLES, 12), generator=torch.Generator().manual_seed(0))
    text[:, 1], text[:, 2:6], text[:, 6] = 58, 60, 59
    patches = torch.randn(SAMPLES * 16, 96, generator=torch.Generator().manual_seed(0))
    images = {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]] * SAMPLES)}
    images |= {"mm_token_type_ids": (text == 60).long()}
    model = library.Qwen2VLForConditionalGeneration(config)
    return model, {"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text, **images}


IDEFICS_EVERY = 2
"""Its layers between two that attend to images."""


def idefics() -> Family:
    """Return a Llama that attends to images in layers between its own."""
    vision = {"embed_dim": 16, "hidden_size": 16, "image_size": 32, "patch_size": 8, "intermediate_size": 32}
    heads = {"num_hidden_layers": 2 * IDEFICS_EVERY, "num_attention_heads": 4}
    config = library.CONFIG_MAPPING["idefics"](
        **{"hidden_size": 16, "intermediate_size": 32, "vocab_size": 64, "additional_vocab_size": 0, **heads},
        **{
            "cross_layer_interval": IDEFICS_EVERY,
            "max_position_embeddings": 64,
            "use_resampler": False,
            "pad_token_id": 0,
        },
        vision_config={**vision, **heads},
        perceiver_config={"use_resampler": False},
    )
    inputs = texts() | {"pixel_values": pixels()[:, None]}
    mask = torch.ones(SAMPLES, LENGTH, 1, dtype=torch.long)
    return library.IdeficsForVisionText2Text(config), inputs | {"image_attention_mask": mask}


def vilt() -> Family:
    """Return one transformer over words and patches."""
    model = library.ViltForQuestionAnswering(tiny("vilt", num_labels=5))
    answers = torch.rand(SAMPLES, 5, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": words(), "attention_mask": torch.ones_like(words()), "pixel_values": pixels()}
    return model, inputs | {"labels": answers}


def sound_features() -> Family:
    """Return a classifier of the features of sounds."""
    sizes: dict[str, Any] = {"feature_projection_input_dim": 8, "apply_spec_augment": False, "classifier_proj_size": 16}
    model = library.AutoModelForAudioClassification.from_config(tiny("wav2vec2-bert", **sizes))
    found = torch.randn(SAMPLES, 16, 8, generator=torch.Generator().manual_seed(0))
    return model, {"input_features": found, "labels": torch.arange(SAMPLES) % 2}


def gemma4(name: str, **more: Any) -> Callable[[], Family]:
    """Return the builder of a Gemma 4, whose configuration derives sizes of layers from others."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 4}
    layers = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    words_of_control = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = library.CONFIG_MAPPING[name]
    return lambda: (
        library.AutoModelForCausalLM.from_config(made(**sizes, **heads, **layers, **words_of_control, **more)),
        texts(),
    )


def captioner() -> Family:
    """Return a model of language that reads the patches of images before the words."""
    config = tiny("git", vision_config={"image_size": 32, "patch_size": 8})
    return library.AutoModelForCausalLM.from_config(config), texts() | {"pixel_values": pixels()}


def dbrx() -> Family:
    """Return a model of language whose experts are in a configuration of their own."""
    attention = {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8}
    experts = {"ffn_hidden_size": 16, "hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2}
    sizes = {"d_model": 16, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 64, "vocab_size": 64}
    config = library.DbrxConfig(**sizes, attn_config=attention, ffn_config=experts)
    return library.AutoModelForCausalLM.from_config(config), texts()


def image_gpt() -> Family:
    """Return a classifier of images that are sequences of colours."""
    model = library.AutoModelForImageClassification.from_config(tiny("imagegpt"))
    return model, {"input_ids": words(), "labels": torch.arange(SAMPLES) % 2}


def masked_autoencoder() -> Family:
    """Return an encoder of images that drops patches. The example says which: random ones cannot be compared."""
    noise = torch.rand(SAMPLES, 16, generator=torch.Generator().manual_seed(0))
    return library.AutoModel.from_config(tiny("vit_mae")), {"pixel_values": pixels(), "noise": noise}
