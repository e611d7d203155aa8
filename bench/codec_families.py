"""Families of Hugging Face that turn sounds into codes and back."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bench.family_builders import Family
from bench.family_inputs import Inputs, drawn, given, sizes
from bench.family_others import other

_DAC: dict[str, Any] = {
    **{"encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "decoder_hidden_size": 16, "n_codebooks": 2},
    **{"codebook_size": 16, "codebook_dim": 4},
}
_ENCODEC: dict[str, Any] = {
    **{"num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 16, "codebook_dim": 8, "hidden_size": 8},
    **{"target_bandwidths": [24.0], "num_lstm_layers": 1, "compress": 2},
}
_UNIVNET: dict[str, Any] = {
    **{"model_in_channels": 8, "model_hidden_channels": 8, "kernel_predictor_hidden_channels": 8},
    **{"kernel_predictor_num_blocks": 1, "resblock_kernel_sizes": [3, 3], "resblock_stride_sizes": [2, 2]},
    "resblock_dilation_sizes": [[1, 3], [1, 3]],
}
_MIMI: dict[str, Any] = {
    **{"num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 32, "codebook_dim": 8, "num_quantizers": 3},
    **{"vector_quantization_hidden_dimension": 8, "upsample_groups": 16, "num_key_value_heads": 4},
    "layer_scale_initial_scale": 1.0,
}
_VOICE: dict[str, Any] = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "hidden_size": 8}
_HUBERT: dict[str, Any] = {
    **{"model_type": "hubert", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 32, "conv_dim": [16, 16], "conv_kernel": [2, 2], "conv_stride": [2, 2]},
    **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    **{"apply_spec_augment": False, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    **{"activation_dropout": 0.0, "feat_proj_dropout": 0.0},
}
_SEMANTIC: dict[str, Any] = {
    **{"model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 32, "feature_projection_input_dim": 8, "conv_depthwise_kernel_size": 3, "layerdrop": 0.0},
    **{"apply_spec_augment": False, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
    **{"feat_proj_dropout": 0.0, "conformer_conv_dropout": 0.0},
}
_ROUNDED: dict[str, Any] = {
    **{"encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "hidden_size": 32, "head_dim": 8},
    **{"num_key_value_heads": 4, "quantization_dim": 48, "quantization_levels": [4, 4]},
    "semantic_model_config": _SEMANTIC,
    "initializer_range": 0.5,  # smaller values are all rounded to zero
}
_SOUND_AND_SPECTROGRAM = given(input_values=drawn(1, 64), input_features=drawn(16, 8))
_POCKET: dict[str, Any] = {
    **{"num_filters": 4, "upsampling_ratios": [2, 2], "upsample_groups": 16, "latent_stride": 2, "latent_dim": 8},
    **{"num_key_value_heads": 4, "layer_scale_initial_scale": 1.0},
}


def _after_a_run(**tensors: Tensor) -> Inputs:
    # Codebooks are computed in the first forward and kept.
    def inputs(model: Any) -> dict[str, Tensor]:
        model(**tensors)
        return tensors

    return inputs


CODECS: dict[str, Callable[[], Family]] = {
    "vibevoice_acoustic_tokenizer_encoder": other(
        "AutoModel", "vibevoice_acoustic_tokenizer_encoder", inputs=given(hidden_states=drawn(1, 64)), **_VOICE
    ),
    "vibevoice_acoustic_tokenizer_decoder": other(
        "AutoModel", "vibevoice_acoustic_tokenizer_decoder", inputs=given(hidden_states=drawn(8, 16)), **_VOICE
    ),
    "encodec": other("AutoModel", "encodec", inputs=given(input_values=drawn(1, 64)), **_ENCODEC),
    "mimi": other("AutoModel", "mimi", inputs=_after_a_run(input_values=drawn(1, 64)), **_MIMI),
    "mimi_decoder": other("AutoModel", "mimi_decoder", inputs=given(latents=drawn(16, 8)), **_MIMI),
    "mimi_encoder": other("AutoModel", "mimi_encoder", inputs=given(input_values=drawn(1, 64)), **_MIMI),
    "univnet": other(
        "AutoModel", "univnet", inputs=given(input_features=drawn(6, 8), noise_sequence=drawn(6, 8)), **_UNIVNET
    ),
    "xcodec": other(
        "AutoModel",
        "xcodec",
        inputs=given(input_values=drawn(1, 320)),
        acoustic_model_config={"model_type": "dac", **_DAC},
        semantic_model_config=_HUBERT,
        **sizes({"codebook_size": 16, "target_bandwidths": [16, 32]}),
    ),
    **{name: other("AutoModel", name, inputs=_SOUND_AND_SPECTROGRAM, **_ROUNDED) for name in ("xcodec2", "neucodec")},
    **{
        name: other("AutoModel", name, inputs=given(input_values=drawn(1, 64)), **_POCKET)
        for name in ("pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder")
    },
    "pocket_tts_audio_tokenizer_decoder": other(
        "AutoModel", "pocket_tts_audio_tokenizer_decoder", inputs=given(latents=drawn(16, 8)), **_POCKET
    ),
}
