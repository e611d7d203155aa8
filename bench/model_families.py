"""The families of Hugging Face that the benchmark tries."""

from collections.abc import Callable

from bench import family_image_sizes, family_sizes
from bench.caption_families import CAPTIONS
from bench.codec_families import CODECS
from bench.depth_families import DEPTHS
from bench.detection_families import DETECTORS
from bench.dialogue_families import DIALOGUES
from bench.document_families import DOCUMENTS
from bench.family_builders import (
    Family,
    captioner,
    captions,
    causal,
    dbrx,
    encoder,
    gemma4,
    idefics,
    image_gpt,
    images,
    llava,
    masked,
    masked_autoencoder,
    objects,
    qwen2_vl,
    sound_features,
    sounds,
    spectrograms,
    text_encoder,
    translator,
    two_towers,
    videos,
    vilt,
    whisper,
)
from bench.forecast_families import FORECASTS
from bench.further_families import FURTHER
from bench.image_families import WITH_IMAGES
from bench.language_families import LANGUAGES
from bench.other_families import OTHERS
from bench.picture_families import PICTURES
from bench.segmentation_families import SEGMENTERS
from bench.speech_families import SPEECHES
from bench.tower_families import TOWERS
from bench.voice_families import VOICES

CAUSAL = (
    *("apertus", "arcee", "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2", "ctrl", "diffllama", "doge"),
    *("ernie4_5", "ernie4_5_moe", "exaone4", "falcon", "falcon_mamba", "gemma", "gemma2", "gemma3_text", "glm", "glm4"),
    *("glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "helium"),
    *("hunyuan_v1_dense", "jamba", "jetmoe", "lfm2", "llama", "mamba", "minimax", "mistral", "mixtral", "mpt"),
    *("nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "persimmon", "phi", "phi3"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rwkv", "seed_oss", "smollm3", "stablelm", "starcoder2"),
    *("vaultgemma", "afmoe", "bert-generation", "cpmant", "cwm", "flex_olmo", "granitemoeshared", "hunyuan_v1_moe"),
    *("aria_text", "beam", "cohere2_moe", "emu3", "exaone_moe", "falcon_h1", "flint", "fuyu", "gemma3", "got_ocr2"),
    *("gpt-sw3", "gpt_neox_japanese", "granite_swa", "granitemoe_swa", "hrm_text", "hy_v3", "hy_v4", "hyperclovax"),
    *("inkling2_text", "inkling_text", "internlm3", "iquestcoder", "kolibri1", "laguna", "lfm3", "llama4"),
    *("llama4_text", "mellum", "mimo_v2_flash", "minimax_m3_vl_text", "ministral3", "mllama", "modernbert-decoder"),
    *("moshi", "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
    *("qwen4_exp", "qwen4_exp_text", "roberta-prelayernorm", "roc_bert", "trocr", "xglm"),
    *("jais2", "minimax_m2", "ministral", "nanochat", "olmo_hybrid", "qwen3_5_text", "solar_open"),
)
MASKED = (
    *("albert", "bert", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra"),
    *("esm", "eurobert", "fnet", "funnel", "layoutlm", "megatron-bert", "modernbert", "mpnet", "nystromformer"),
    *("rembert", "roberta", "roformer", "xlm-roberta", "yoso"),
    *("gte", "ibert", "jina_embeddings_v3", "modernvbert", "ultrabert", "ultravbert"),
    *("ernie", "luke", "nomic_bert", "tapas", "xlm-roberta-xl"),
)
TRANSLATORS = (
    *("bart", "blenderbot", "blenderbot-small", "led", "longt5", "m2m_100", "marian", "mbart", "mt5", "mvp", "pegasus"),
    *("plbart", "t5", "umt5", "nllb-moe", "pegasus_x", "switch_transformers", "t5gemma", "t5gemma2"),
)
IMAGES = (*("beit", "dinov2", "vit", "data2vec-vision", "dinov2_with_registers", "ijepa", "metaclip_2", "vit_msn"),)
SOUNDS = (
    *("hubert", "wav2vec2", "data2vec-audio", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2-conformer"),
    "wavlm",
)
TEXT_ENCODERS = ("clip_text_model", "molmo2_text", "tipsv2_text_model")

FAMILIES: dict[str, Callable[[], Family]] = {
    **{name: causal(name) for name in CAUSAL},
    **{name: causal(name, **sizes) for name, sizes in family_sizes.CAUSAL.items()},
    "llama, yarn": causal(
        "llama",
        rope_parameters={
            **{"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
        },
    ),
    "mixtral, router losses": causal("mixtral", output_router_logits=True, router_aux_loss_coef=1.0),
    **{name: masked(name) for name in MASKED},
    **{name: masked(name, **sizes) for name, sizes in family_sizes.MASKED.items()},
    **{name: translator(name, **family_sizes.TRANSLATORS.get(name, {})) for name in TRANSLATORS},
    **{name: images(name) for name in IMAGES},
    "deit": images("deit", "DeiTForImageClassification"),
    **{name: images(name, **sizes) for name, sizes in family_image_sizes.PYRAMIDS.items()},
    **{name: sounds(name) for name in SOUNDS},
    "wav2vec2-bert": sound_features,
    **{name: encoder(name, **sizes) for name, sizes in family_image_sizes.ENCODERS.items()},
    "imagegpt": image_gpt,
    "vit_mae": masked_autoencoder,
    "timesformer": videos("timesformer"),
    "videomae": videos("videomae", tubelet_size=2),
    "vivit": videos("vivit", tubelet_size=[2, 8, 8]),
    **{name: text_encoder(name) for name in TEXT_ENCODERS},
    "dbrx": dbrx,
    "gemma4_text": gemma4("gemma4_text", hidden_size_per_layer_input=8, vocab_size_per_layer_input=64),
    "gemma4_unified_text": gemma4("gemma4_unified_text"),
    "git": captioner,
    "audio-spectrogram-transformer": spectrograms,
    "whisper": whisper,
    "clip": two_towers("clip", "CLIPModel", projection_dim=16),
    "siglip": two_towers("siglip", "SiglipModel"),
    "blip": two_towers("blip", "BlipModel", projection_dim=16),
    "vision-encoder-decoder": captions,
    "detr": objects,
    "idefics": idefics,
    "llava": llava,
    "qwen2_vl": qwen2_vl,
    "vilt": vilt,
    **OTHERS,
    **FURTHER,
    **CAPTIONS,
    **DIALOGUES,
    **LANGUAGES,
    **DETECTORS,
    **SEGMENTERS,
    **DEPTHS,
    **DOCUMENTS,
    **SPEECHES,
    **VOICES,
    **CODECS,
    **FORECASTS,
    **WITH_IMAGES,
    **PICTURES,
    **TOWERS,
}
"""In the order of the table in docs/models.md."""
