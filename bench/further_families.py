"""Families of Hugging Face with inputs or sizes of their own: documents, detectors, segmenters, decisions and times."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import SAMPLES, Family, library, pixels, words
from bench.family_others import other, text_to_text
from bench.family_sizes import ONE_GROUP

_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
_HALF = {**_ROPE, "mrope_section": [1, 0, 0], "partial_rotary_factor": 0.5}
_POSITIONS_IN_IMAGES = ("qwen2_5_vl", "glm4v", "glm46v", "glmga", "glm_ocr", "paddleocr_vl", "cosmos3_edge")
_THEIR_TEXT_PARTS = ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text", "cosmos3_edge_text")


def _drawn(*shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def _texts(model: Any) -> dict[str, Tensor]:
    del model
    return {"input_ids": words(), "attention_mask": torch.ones_like(words())}


def _texts_and_images(model: Any) -> dict[str, Tensor]:
    return _texts(model) | {"pixel_values": pixels()}


def _documents(model: Any) -> dict[str, Tensor]:
    return _texts(model) | {"bbox": torch.arange(4).repeat(*words().shape, 1)}


def _documents_to_texts(model: Any) -> dict[str, Tensor]:
    return text_to_text(model) | {"bbox": torch.linspace(0, 1, 4).repeat(*words().shape, 1)}


def _characters(model: Any) -> dict[str, Tensor]:
    del model
    found = torch.cat([words(), words(), words()], 1)[:, :16]
    return {"input_ids": found, "attention_mask": torch.ones_like(found)}


def _decisions(model: Any) -> dict[str, Tensor]:
    inputs = {"states": _drawn(7, 17), "actions": _drawn(7, 4), "rewards": _drawn(7, 1), "returns_to_go": _drawn(7, 1)}
    steps = torch.arange(7).repeat(SAMPLES, 1)
    return inputs | {"timesteps": steps, "attention_mask": _texts(model)["attention_mask"]}


def _times(model: Any) -> dict[str, Tensor]:
    return {"past_values": _drawn(model.config.context_length, model.config.num_input_channels)}


def _large_images(model: Any) -> dict[str, Tensor]:
    del model
    return {"pixel_values": pixels(64)}


def _images(model: Any) -> dict[str, Tensor]:
    del model
    return {"pixel_values": pixels()}


def _resnet(*outputs: str) -> Any:
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    return library.ResNetConfig(**sizes, out_features=list(outputs))


def _real_time(kind: str, name: str) -> Callable[[], Family]:
    sizes: dict[str, Any] = {"encoder_in_channels": [8, 16, 16], "decoder_in_channels": [16, 16, 16]}
    counts: dict[str, Any] = {"encoder_layers": 1, "encode_proj_layers": [2], "num_queries": 5, "num_denoising": 0}
    more: dict[str, Any] = {"backbone_config": _resnet("stage2", "stage3", "stage4"), "encoder_hidden_dim": 16}
    return other(kind, name, inputs=_large_images, **sizes, **counts, **more, decoder_ffn_dim=16)


def _masks() -> Callable[[], Family]:
    shape: dict[str, Any] = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2], "window_size": 2}
    outputs = [f"stage{number}" for number in range(1, 5)]
    sizes: dict[str, Any] = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "num_queries": 5}
    swin = library.SwinConfig(**shape, image_size=64, out_features=outputs, drop_path_rate=0.0, hidden_dropout_prob=0.0)
    sizes |= {"encoder_feedforward_dim": 16, "dim_feedforward": 16, "train_num_points": 16, "backbone_config": swin}
    return other("Mask2FormerForUniversalSegmentation", "mask2former", inputs=_large_images, **sizes)


def _segments() -> Callable[[], Family]:
    sizes: dict[str, Any] = {"hidden_size": 16, "auxiliary_in_channels": 16, "auxiliary_channels": 8}
    sizes |= {"backbone_config": _resnet("stage1", "stage2", "stage3", "stage4")}
    return other("UperNetForSemanticSegmentation", "upernet", inputs=_large_images, **sizes)


FURTHER: dict[str, Callable[[], Family]] = {
    **{
        name: other("AutoModelForImageTextToText", name, labels=True, text_config={"rope_parameters": _ROPE})
        for name in _POSITIONS_IN_IMAGES
    },
    "glm4v_moe": other("AutoModelForImageTextToText", "glm4v_moe", labels=True, text_config={"rope_parameters": _HALF}),
    "janus": other("AutoModelForImageTextToText", "janus", labels=True),
    "mistral4": other("Mistral4ForCausalLM", "mistral4", labels=True, **ONE_GROUP),
    **{name: other("AutoModel", name, rope_parameters=_ROPE) for name in _THEIR_TEXT_PARTS},
    "florence2": other("AutoModel", "florence2", inputs=text_to_text),
    "evolla": other("EvollaForProteinText2Text", "evolla", inputs=_texts),
    "colmodernvbert": other("ColModernVBertForRetrieval", "colmodernvbert", inputs=_texts),
    **{
        name: other("AutoModel", name, inputs=_images)
        for name in ("granite_docling_vision", "idefics3_vision", "smolvlm_vision")
    },
    **{
        name: other("AutoModel", name, inputs=_texts_and_images, projection_dim=16)
        for name in ("altclip", "chinese_clip", "clipseg")
    },
    "aimv2": other("AutoModel", "aimv2", inputs=_texts_and_images, attn_implementation="eager"),
    "owlvit": other("OwlViTForObjectDetection", "owlvit", inputs=_texts_and_images),
    "owlv2": other("Owlv2ForObjectDetection", "owlv2", inputs=_texts_and_images),
    "layoutlmv3": other(
        "AutoModelForTokenClassification", "layoutlmv3", inputs=_documents, coordinate_size=2, shape_size=4
    ),
    "lilt": other("AutoModelForTokenClassification", "lilt", inputs=_documents, hidden_size=24, num_attention_heads=2),
    "bros": other("AutoModelForTokenClassification", "bros", inputs=_documents, hidden_size=64),
    "udop": other("AutoModel", "udop", inputs=_documents_to_texts, decoder_start_token_id=0),
    "canine": other("AutoModelForSequenceClassification", "canine", inputs=_characters),
    "rt_detr": _real_time("RTDetrForObjectDetection", "rt_detr"),
    "rt_detr_v2": _real_time("RTDetrV2ForObjectDetection", "rt_detr_v2"),
    "mask2former": _masks(),
    "upernet": _segments(),
    "sam": other(
        "SamModel",
        "sam",
        inputs=_images,
        vision_config={"output_channels": 16, "num_pos_feats": 8},
        prompt_encoder_config={"image_embedding_size": 4},
    ),
    "decision_transformer": other(
        "DecisionTransformerModel", "decision_transformer", inputs=_decisions, use_cache=False
    ),
    "patchtst": other("PatchTSTForClassification", "patchtst", inputs=_times),
    "patchtsmixer": other("PatchTSMixerForTimeSeriesClassification", "patchtsmixer", inputs=_times),
}
"""In the order of the table in docs/models.md."""
