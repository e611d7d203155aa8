"""The families of Hugging Face that `family_others` builds."""

from collections.abc import Callable

from bench.family_builders import Family
from bench.family_others import (
    detector,
    encoder_decoder,
    masked_prefix,
    other,
    speech_encoder_decoder,
    text_to_text,
)

TEXTS = (
    *("aria", "aya_vision", "cohere2_vision", "cosmos3_omni", "deepseek_vl", "deepseek_vl_hybrid", "exaone4_5"),
    *("gemma4", "gemma4_unified", "granite_docling", "hyperclovax_vision_v2", "idefics2", "idefics3", "inkling2"),
    *("inkling_mm_model", "internvl", "kosmos-2.5", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llava_next"),
    *("llava_next_video", "llava_onevision", "minimax_m3_vl", "mistral3", "muse_glimmer", "ovis2", "pp_chart2table"),
    *("qianfan_ocr", "qwen3_vl", "qwen3_vl_moe", "shieldgemma2", "smolvlm", "video_llama_3", "video_llava", "vipllava"),
)
"""Models of texts and images, tried with texts only."""
SOUNDS_AND_TEXTS = (
    *("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "musicflamingo", "qwen2_audio"),
    *("qwen3_asr", "seamless_m4t", "seamless_m4t_v2", "voxtral"),
)
"""Models of texts and sounds, tried with texts only."""
ENCODERS = (
    *("chinese_clip_vision_model", "clip_vision_model", "mlcd", "radio", "sam3_vision_model", "sam3_vit_model"),
    *("sam_hq_vision_model", "sam_vision_model", "internvl_vision", "qianfan_ocr_vision", "pp_ocrv6_small_rec"),
    *("pp_ocrv6_tiny_rec", "cohere_asr", "glmasr_encoder", "lasr_encoder", "moss_transcribe_diarize_audio"),
    *("parakeet_encoder", "qwen2_audio_encoder", "voxtral_encoder"),
    *("voxtral_realtime_encoder", "dpr", "embedding_gemma2", "embedding_gemma2_text", "flava", "granite_docling_text"),
    *("higgs_audio_v2", "markuplm", "muse_glimmer_text", "muse_spark_text", "openai_privacy_filter"),
    *("qwen3_vl_moe_text", "qwen3_vl_text", "splinter", "visual_bert", "vjepa2"),
)
"""Models without a loss."""
_MOONSHINE = {"decoder_start_token_id": 1, "encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4}
OTHERS: dict[str, Callable[[], Family]] = {
    **{name: other("AutoModelForImageTextToText", name, labels=True) for name in TEXTS},
    **{name: other("AutoModelForSeq2SeqLM", name, labels=True) for name in SOUNDS_AND_TEXTS},
    **{name: other("AutoModelForSpeechSeq2Seq", name, labels=True) for name in ("canary", "speech_to_text")},
    **{name: other("AutoModel", name) for name in ENCODERS},
    **{name: other("AutoModelForCTC", name) for name in ("lasr_ctc", "parakeet_ctc")},
    **{
        name: other("AutoBackbone", name)
        for name in ("pp_lcnet_v3", "pp_lcnet_v4", "rt_detr_resnet", "uvdoc_backbone", "tipsv2")
    },
    "paligemma": other("AutoModelForImageTextToText", "paligemma", labels=True, inputs=masked_prefix),
    "encoder-decoder": encoder_decoder,
    "speech-encoder-decoder": speech_encoder_decoder,
    "conditional_detr": detector("ConditionalDetrForObjectDetection", "conditional_detr"),
    "dab-detr": detector("DabDetrForObjectDetection", "dab-detr"),
    "deformable_detr": detector("DeformableDetrForObjectDetection", "deformable_detr", num_feature_levels=4),
    "table-transformer": detector("TableTransformerForObjectDetection", "table-transformer"),
    "moonshine": other("AutoModelForSpeechSeq2Seq", "moonshine", labels=True, **_MOONSHINE),
    "dinov3_vit": other("AutoModel", "dinov3_vit", pos_embed_rescale=None),
    "sapiens2": other("AutoModel", "sapiens2", pos_embed_rescale=None),
    "swin2sr": other(
        "Swin2SRForImageSuperResolution", "swin2sr", depths=[2, 2], num_heads=[2, 2], window_size=4, patch_size=1
    ),
    "levit": other(
        "LevitForImageClassification",
        "levit",
        image_size=64,
        patch_size=16,
        hidden_sizes=[16, 16, 32],
        num_attention_heads=[2, 2, 4],
        depths=[2, 2, 2],
        key_dim=[8, 8, 8],
    ),
    "pop2piano": other("Pop2PianoForConditionalGeneration", "pop2piano", inputs=text_to_text),
}
