"""Families of Hugging Face that forecast series of numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.family_builders import LAYERS, SAMPLES, Family
from bench.family_inputs import drawn, given
from bench.family_others import other

CONTEXT, FUTURE, LAGS = 8, 4, [1, 2, 3]
_PAST = CONTEXT + max(LAGS)


def _features(length: int) -> Tensor:
    return torch.linspace(0, 1, length).repeat(SAMPLES, 1)[..., None]


def _series(name: str, **more: Any) -> Callable[[], Family]:
    sizes: dict[str, Any] = {"prediction_length": FUTURE, "context_length": CONTEXT, "lags_sequence": LAGS}
    past = given(
        past_values=drawn(_PAST),
        past_time_features=_features(_PAST),
        past_observed_mask=torch.ones(SAMPLES, _PAST),
        future_values=drawn(FUTURE),
        future_time_features=_features(FUTURE),
    )
    return other("AutoModel", name, inputs=past, num_time_features=1, feature_size=6, **sizes, **more)


def _patches(name: str, **tensors: Tensor) -> Callable[[], Family]:
    sizes: dict[str, Any] = {"patch_length": 4, "context_length": 16, "horizon_length": 4, "num_hidden_layers": LAYERS}
    return other("AutoModel", name, inputs=given(past_values=drawn(16), **tensors), **sizes)


_PADDING = torch.zeros(SAMPLES, 16)
FORECASTS: dict[str, Callable[[], Family]] = {
    "time_series_transformer": _series("time_series_transformer"),
    "informer": _series("informer", attention_type="full", distil=False),
    "timesfm": _patches("timesfm", past_values_padding=_PADDING, freq=torch.zeros(SAMPLES, 1, dtype=torch.long)),
    "timesfm2_5": _patches("timesfm2_5", past_values_padding=_PADDING),
}
