"""Families of Hugging Face that hear or speak."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family, words
from bench.family_inputs import drawn, given, sizes
from bench.family_others import other

_SPEECH: dict[str, Any] = {
    **{"conv_dim": [16, 16], "conv_kernel": [4, 4], "conv_stride": [2, 2], "num_conv_pos_embeddings": 4},
    **{"num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "decoder_start_token_id": 1},
}
_TRANSDUCED = given(input_features=drawn(32, 8), decoder_input_ids=words())
_HEARD: dict[str, Any] = {"subsampling_conv_channels": 8, "num_key_value_heads": 4}
_SPOKEN: dict[str, Any] = {"decoder_hidden_size": 16, "blank_token_id": 63, "encoder_config": _HEARD}

SPEECHES: dict[str, Callable[[], Family]] = {
    "speecht5": other(
        "AutoModelForSpeechSeq2Seq", "speecht5", labels=True, inputs=given(input_values=drawn(64)), **_SPEECH
    ),
    "moonshine_streaming": other(
        "AutoModelForSpeechSeq2Seq",
        "moonshine_streaming",
        labels=True,
        inputs=given(input_values=drawn(1600)),
        decoder_start_token_id=1,
        encoder_config={"sliding_windows": [[4, 2], [4, 0], [4, 2]], "num_key_value_heads": 4},
        num_key_value_heads=4,
    ),
    "parakeet_rnnt": other("AutoModel", "parakeet_rnnt", inputs=_TRANSDUCED, **_SPOKEN),
    "parakeet_tdt": other("AutoModel", "parakeet_tdt", inputs=_TRANSDUCED, **_SPOKEN),
    "granite_speech5_encoder": other(
        "AutoModel",
        "granite_speech5_encoder",
        inputs=given(input_features=drawn(32, 32)),
        context_size=8,
        num_key_value_heads=4,
    ),
    "granite_speech5_ctc": other(
        "AutoModelForCTC",
        "granite_speech5_ctc",
        inputs=given(input_features=drawn(32, 32)),
        encoder_config={"context_size": 8, "num_key_value_heads": 4},
    ),
    "gemma3n_audio": other(
        "AutoModel",
        "gemma3n_audio",
        inputs=given(audio_mel=drawn(32, 16), audio_mel_mask=torch.zeros(SAMPLES, 32, dtype=torch.bool)),
        **sizes({"input_feat_size": 16, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 3}),
        **sizes({"sscp_conv_channel_size": [8, 8], "conf_attention_chunk_size": 4, "conf_attention_context_left": 3}),
    ),
    "dia": other(
        "AutoModelForSpeechSeq2Seq",
        "dia",
        inputs=given(input_ids=words(), decoder_input_ids=torch.stack([words()] * 2, -1)),
        delay_pattern=[0, 2],
        decoder_config={"num_channels": 2, "cross_num_attention_heads": 4, "cross_head_dim": 4}
        | {"cross_num_key_value_heads": 4, "cross_hidden_size": 16},
        encoder_config={"num_key_value_heads": 4},
    ),
}
