"""Families of Hugging Face that read texts with sounds, or speak."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family, words
from bench.family_inputs import drawn, given, sizes, texts_with
from bench.family_others import other

SOUND = 60
"""The word that stands for a feature of a sound."""
CODEC: dict[str, Any] = {
    **{"num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 16, "codebook_dim": 8, "num_quantizers": 3},
    **{"vector_quantization_hidden_dimension": 8, "upsample_groups": 16, "num_key_value_heads": 4},
}
_FLOW: dict[str, Any] = {
    "flow_head_config": {"latent_dim": 8, "condition_dim": 16, "frequency_embedding_size": 8},
    **{"latent_dim": 8, "num_key_value_heads": 4, "audio_prompt_token_id": 60, "audio_latent_token_id": 61},
}
_TOKENS: dict[str, Any] = {"audio_bos_token_id": 63, "vocab_size": 64}
_STACKED = {"input_features": drawn(12, 16), "input_features_mask": torch.ones(SAMPLES, 12, dtype=torch.long)}
_STACK: dict[str, Any] = {"num_mel_bins": 8, "num_stacked_frames": 2, "num_timestamp_prediction_layers": 1}
_DIARIZATION: dict[str, Any] = {
    "audio_config": {"hidden_size": 16, "num_key_value_heads": 4},
    "head_config": {"audio_hidden_size": 16, "hidden_size": 16, "num_speakers": 4},
    "streaming_config": {"num_speakers": 4},
}
_WORDS_IN_TIME: dict[str, Any] = {"vocab_size": 64, "blank_token_id": 63, "num_key_value_heads": 4}
_TRANSCRIBED: dict[str, Any] = {
    "asr_config": {"hidden_size": 16, "num_key_value_heads": 4},
    "diarization_config": _DIARIZATION,
}
_BANDS = {"input_features": drawn(64, 128), "attention_mask": torch.ones(SAMPLES, 64, dtype=torch.bool)}
_VOICE: dict[str, Any] = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "hidden_size": 8}
_CODES = torch.stack([words() % 16] * 3, -1)
_DAC = {"encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "codebook_dim": 4, "decoder_hidden_size": 16}

VOICES: dict[str, Callable[[], Family]] = {
    "pocket_tts": other(
        "AutoModel", "pocket_tts", inputs=texts_with(), **_FLOW, **_TOKENS, audio_prompt_bos_token_id=62
    ),
    "gradium_phonon_tts": other("AutoModel", "gradium_phonon_tts", inputs=texts_with(), **_FLOW, **_TOKENS),
    "fun_asr_nano_encoder": other("AutoModel", "fun_asr_nano_encoder", inputs=given(**_STACKED), **_STACK),
    "fun_asr_nano": other(
        "AutoModelForSpeechSeq2Seq",
        "fun_asr_nano",
        labels=True,
        adaptor_config={"intermediate_size": 4},
        audio_config=_STACK,
    ),
    "audioflamingo3_encoder": other(
        "AutoModel",
        "audioflamingo3_encoder",
        inputs=given(input_features=drawn(8, 32), input_features_mask=torch.ones(SAMPLES, 32, dtype=torch.long)),
    ),
    "voxtral_realtime": other(
        "AutoModelForSpeechSeq2Seq",
        "voxtral_realtime",
        inputs=given(input_ids=words(), input_features=drawn(8, 56), labels=words()),
        audio_config={"num_mel_bins": 8},
    ),
    "kyutai_speech_to_text": other(
        "AutoModelForSpeechSeq2Seq",
        "kyutai_speech_to_text",
        inputs=given(input_ids=torch.cat([words()[..., None], _CODES], -1), labels=words()),
        codec_config=CODEC,
        **sizes({"codebook_vocab_size": 17, "num_codebooks": 3, "num_key_value_heads": 4, "audio_bos_token_id": 16}),
        **sizes({"audio_pad_token_id": 69}),
    ),
    "csm": other(
        "AutoModel",
        "csm",
        inputs=texts_with(),
        codec_config=CODEC,
        depth_decoder_config={"num_codebooks": 3, "backbone_hidden_size": 16},
        **sizes({"num_codebooks": 3, "text_vocab_size": 64, "codebook_pad_token_id": 63, "audio_token_id": SOUND}),
        **sizes({"audio_eos_token_id": 61}),
    ),
    "vibevoice_asr": other(
        "AutoModelForSpeechSeq2Seq",
        "vibevoice_asr",
        labels=True,
        acoustic_tokenizer_encoder_config=_VOICE,
        semantic_tokenizer_encoder_config=_VOICE,
        acoustic_tokenizer_chunk_size=64,
    ),
    "pe_audio_encoder": other(
        "AutoModel",
        "pe_audio_encoder",
        inputs=given(input_values=drawn(1, 64)),
        dac_config=_DAC,
        num_key_value_heads=4,
    ),
    "pe_audio": other(
        "AutoModel",
        "pe_audio",
        inputs=texts_with(input_values=drawn(1, 64)),
        audio_config={"dac_config": _DAC, "num_key_value_heads": 4},
    ),
    "muse_spark_audio": other(
        "AutoModel",
        "muse_spark_audio",
        inputs=given(input_values=drawn(64)),
        **sizes({"num_hidden_layers": 4, "hidden_sizes": [8] * 4, "patch_sizes": [4, 2, 2, 2], "out_hidden_size": 16}),
    ),
    "gemma4_audio": other("AutoModel", "gemma4_audio", inputs=given(**_BANDS)),
    "nemotron3_diarization": other(
        "AutoModel", "nemotron3_diarization", inputs=given(input_features=drawn(64, 8)), **_DIARIZATION
    ),
    **{
        name: other("AutoModel", name, inputs=given(input_features=drawn(64, 8)), num_key_value_heads=4)
        for name in ("nemotron3_diarization_audio", "nemotron3_5_transcribe_asr_audio")
    },
    "nemotron3_5_transcribe_audio": other(
        "AutoModel", "nemotron3_5_transcribe_audio", inputs=given(input_features=drawn(64, 8)), **_TRANSCRIBED
    ),
    "nemotron3_5_transcribe_word_timestamp": other(
        "AutoModel",
        "nemotron3_5_transcribe_word_timestamp",
        inputs=given(inputs_embeds=drawn(8, 16)),
        **_WORDS_IN_TIME,
    ),
    "nemo_speechlm": other(
        "Nemotron3_5TranscribeForConditionalGeneration",
        "nemo_speechlm",
        labels=True,
        audio_config=_TRANSCRIBED,
        word_timestamp_config=_WORDS_IN_TIME,
    ),
    "vibevoice": other(
        "VibeVoiceForConditionalGeneration",
        "vibevoice",
        labels=True,
        audio_config=_VOICE,
        semantic_model_config=_VOICE,
    ),
}
