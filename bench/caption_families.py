"""Families of Hugging Face that read texts with images, or compare them."""

from collections.abc import Callable
from typing import Any

import torch

from bench.family_builders import SAMPLES, Family, library, pixels, tiny, words
from bench.family_inputs import drawn, given, labelled, sizes, texts_with
from bench.family_others import other

IMAGE = 60
"""The word that stands for a feature of an image."""
QUERIES = 2
"""Features of one image."""
_BRIGHT: dict[str, Any] = {"vision_config": {"initializer_range": 0.02}}
_QUESTION = {"qformer_input_ids": words(), "qformer_attention_mask": torch.ones_like(words())}


def _asked(name: str, **more: Any) -> Callable[[], Family]:
    inputs = labelled(QUERIES, IMAGE, pixel_values=pixels(), **(_QUESTION if name == "instructblip" else {}))
    sizes: dict[str, Any] = {"num_query_tokens": QUERIES, "image_token_index": IMAGE, **_BRIGHT, **more}
    return other("AutoModelForImageTextToText", name, inputs=inputs, **sizes)


def _film() -> Callable[[], Family]:
    inputs = labelled(3 * QUERIES, IMAGE, pixel_values=drawn(3, 3, 32, 32), **_QUESTION)
    sizes: dict[str, Any] = {"num_query_tokens": QUERIES, "video_token_index": IMAGE, **_BRIGHT}
    return other("AutoModelForImageTextToText", "instructblipvideo", inputs=inputs, **sizes)


def _kosmos() -> Callable[[], Family]:
    text = torch.cat([words(), words()], 1)
    places = torch.zeros_like(text)
    places[:, 1 : 1 + QUERIES] = 1
    mask = torch.ones_like(text)
    inputs = given(
        input_ids=text, attention_mask=mask, labels=text, pixel_values=pixels(), image_embeds_position_mask=places
    )
    text_sizes: dict[str, Any] = {"embed_dim": 16, "layers": 3, "attention_heads": 4}
    return other(
        "AutoModelForImageTextToText", "kosmos-2", inputs=inputs, text_config=text_sizes, latent_query_num=QUERIES
    )


def _dual() -> Family:
    config = library.VisionTextDualEncoderConfig.from_vision_text_configs(tiny("vit"), tiny("bert"), projection_dim=16)
    return library.VisionTextDualEncoderModel(config), texts_with(pixel_values=pixels())(None)


_FILM = drawn(4, 3, 32, 32)
CAPTIONS: dict[str, Callable[[], Family]] = {
    "blip-2": _asked("blip-2"),
    "instructblip": _asked("instructblip"),
    "instructblipvideo": _film(),
    "blip_2_qformer": other(
        "AutoModel", "blip_2_qformer", inputs=given(query_embeds=drawn(4, 16), encoder_hidden_states=drawn(5, 16))
    ),
    "bridgetower": other(
        "AutoModel",
        "bridgetower",
        inputs=texts_with(pixel_values=pixels(), pixel_mask=torch.ones(SAMPLES, 32, 32, dtype=torch.long)),
        vision_config={"hidden_size": 64},
    ),
    "kosmos-2": _kosmos(),
    "vision-text-dual-encoder": _dual,
    "align": other(
        "AutoModel",
        "align",
        inputs=texts_with(pixel_values=pixels()),
        projection_dim=80,
        vision_config={"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 80},
    ),
    "clap": other(
        "AutoModel",
        "clap",
        inputs=texts_with(input_features=drawn(1, 32, 16)),
        audio_config={
            **{"spec_size": 64, "num_mel_bins": 16, "window_size": 4, "patch_size": 2, "patch_stride": [2, 2]},
            **{"depths": [2, 2], "num_attention_heads": [2, 2], "num_hidden_layers": 2, "hidden_size": 32},
            "patch_embeds_hidden_size": 16,
        },
    ),
    "clvp": other(
        "AutoModel",
        "clvp",
        inputs=texts_with(input_features=drawn(8, 20)),
        projection_dim=16,
        **sizes({f"{part}_config": {"hidden_size": 64, "num_attention_heads": 2} for part in ("text", "speech")}),
        decoder_config={"feature_size": 8, "max_text_tokens": 64, "decoder_fixing_codes": [3, 4, 4, 5]},
    ),
    "xclip": other(
        "AutoModel",
        "xclip",
        inputs=texts_with(pixel_values=_FILM),
        prompt_num_attention_heads=4,
        vision_config={
            **{"num_frames": 4, "mit_hidden_size": 16, "mit_intermediate_size": 32, "mit_num_attention_heads": 4}
        },
    ),
    "videoprism": other(
        "AutoModel",
        "videoprism",
        inputs=texts_with(pixel_values_videos=_FILM),
        vision_config={
            **{"num_frames": 4, "tubelet_size": [1, 8, 8], "num_spatial_layers": 2, "num_temporal_layers": 2}
        },
    ),
    "videoprism_vision_model": other(
        "AutoModel",
        "videoprism_vision_model",
        inputs=given(pixel_values_videos=_FILM),
        **sizes({"num_frames": 4, "tubelet_size": [1, 8, 8], "num_spatial_layers": 2, "num_temporal_layers": 2}),
    ),
    "mgp-str": other(
        "AutoModel",
        "mgp-str",
        inputs=given(pixel_values=drawn(3, 32, 32)),
        **sizes({"image_size": [32, 32], "patch_size": 8, "num_bpe_labels": 20, "num_wordpiece_labels": 20}),
    ),
    "lxmert": other(
        "AutoModel",
        "lxmert",
        inputs=texts_with(visual_feats=drawn(5, 8), visual_pos=drawn(5, 4)),
        **sizes({"l_layers": 2, "x_layers": 2, "r_layers": 2, "visual_feat_dim": 8}),
    ),
}
