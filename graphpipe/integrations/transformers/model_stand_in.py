"""Stands in for the model where `Trainer` calls it, and returns what the pipeline has computed."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from transformers.utils.generic import ModelOutput


class ModelStandIn:
    """What `compute_loss` is given in place of the model. Everything but a call is the model's own.

    Args:
        model: the user's.
        call: returns the model's outputs by name, for the keyword arguments of its forward.
    """

    def __init__(self, model: nn.Module, call: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self.model = model
        self._call = call

    def __call__(self, **inputs: Any) -> ModelOutput:
        """Return the outputs, which can be read by name, by attribute and by position, as those of the model."""
        return ModelOutput(**self._call(inputs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
