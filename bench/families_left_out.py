"""Model types of Hugging Face that an automatic class knows, and that are not in the table, with the reason."""

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "needs a package beside `transformers`: `timm`, `natten`, `detectron2` or `torchaudio`": (
        *("dinat", "edgetam", "edgetam_vision_model", "fast_vlm", "gemma3n", "gemma3n_vision"),
        *("higgs_audio_v2_tokenizer", "layoutlmv2", "omdet-turbo", "pe_audio_video"),
        *("pe_audio_video_encoder", "pe_video", "pe_video_encoder", "perception_lm", "timm_backbone"),
        *("timm_wrapper",),
    ),
    "loops over images in its own forward, with sizes that are values, and takes no result of that loop as an input": (
        *("cosmos3_edge_vision", "hunyuan_vl_vision", "inkling2_vision", "lfm3_vl_vision", "muse_spark_vision"),
        *("video_llama_3_vision",),
    ),
    "decides by values between its layers, or loops over the samples of a mini-batch": (
        *("blt", "eomt", "eomt_dinov3", "fastspeech2_conformer"),
        *("fastspeech2_conformer_with_hifigan", "fsmt", "lightglue"),
        *("pixtral", "qwen3_asr_encoder", "sam3", "sam3_lite_text"),
        *("slanet", "slanext", "superglue", "superpoint", "vits"),
    ),
    "has no forward, or needs the session of a video": (
        *("bark", "edgetam_video", "glm_image_vqmodel", "qwen2_5_omni", "qwen3_omni_moe", "sam2_video"),
        *("sam3_tracker_video", "sam3_video"),
    ),
    "draws random numbers in its forward, so that it cannot be compared": (
        *("groupvit", "vibevoice_acoustic_tokenizer"),
    ),
    "makes its masks with `torch.vmap` in its own forward, which is not followed": (
        *("nemotron3_5_asr", "nemotron_asr_streaming", "nemotron_asr_streaming_encoder"),
    ),
    "computes a mean over all samples of a mini-batch inside a layer, so that micro-batches change it": (
        *("autoformer", "dac"),
    ),
    "hands a submodule to another one as an argument": (*("perceiver",),),
    "hands a key-value cache or a dictionary of keys and values from one part to another": (
        *("diffusion_gemma", "gemma4_assistant", "gemma4_unified_assistant", "pi0"),
    ),
    "runs for one sample only, or cannot be built by its automatic class in 5.23, also in plain PyTorch": (
        *("jev", "tvp", "voxtral_realtime_text"),
    ),
    "takes codes with several rows for each sample, but every input needs one row per sample": (
        *("musicgen", "musicgen_melody"),
    ),
    "makes a plain number of the number of samples, which is variable": (*("depth_pro", "zoedepth"),),
    "runs all of its layers in one autograd function, whose backward computes their inputs again": (*("reformer",),),
    "takes the patches of all images as one image of one row, but every input needs one row per sample": (
        *("minicpm_ocr_vision", "minicpmv4_7_vision"),
    ),
}
"""A reason completes the sentence "this model ..."."""
