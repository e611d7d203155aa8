"""Families of Hugging Face that turn sounds into codes and back."""

from collections.abc import Callable
from typing import Any

from bench.family_builders import Family
from bench.family_inputs import drawn, given, sizes
from bench.family_others import other

_DAC: dict[str, Any] = {
    **{"encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "decoder_hidden_size": 16, "n_codebooks": 2},
    **{"codebook_size": 16, "codebook_dim": 4},
}
_VOICE: dict[str, Any] = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "hidden_size": 8}
_HUBERT: dict[str, Any] = {
    **{"model_type": "hubert", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 32, "conv_dim": [16, 16], "conv_kernel": [2, 2], "conv_stride": [2, 2]},
    **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    **{"apply_spec_augment": False, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    **{"activation_dropout": 0.0, "feat_proj_dropout": 0.0},
}

CODECS: dict[str, Callable[[], Family]] = {
    "vibevoice_acoustic_tokenizer_encoder": other(
        "AutoModel", "vibevoice_acoustic_tokenizer_encoder", inputs=given(hidden_states=drawn(1, 64)), **_VOICE
    ),
    "vibevoice_acoustic_tokenizer_decoder": other(
        "AutoModel", "vibevoice_acoustic_tokenizer_decoder", inputs=given(hidden_states=drawn(8, 16)), **_VOICE
    ),
    "xcodec": other(
        "AutoModel",
        "xcodec",
        inputs=given(input_values=drawn(1, 320)),
        acoustic_model_config={"model_type": "dac", **_DAC},
        semantic_model_config=_HUBERT,
        **sizes({"codebook_size": 16, "target_bandwidths": [16, 32]}),
    ),
}
