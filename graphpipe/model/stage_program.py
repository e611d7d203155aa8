"""The stage program: what the runtime runs for one stage, whatever it was made from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """A tensor that crosses a stage edge; its first dimension is samples."""

    name: str
    """Unique in the model, the same on every rank."""
    sample_shape: tuple[int, ...]
    """Shape without the first dimension, for the example inputs."""
    dtype: torch.dtype
    requires_grad: bool
    """True when the consumer sends a gradient back: floating point, and some trainable parameter is upstream."""

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.sample_shape) * self.dtype.itemsize


class StageProgram(Protocol):
    """One stage of a split model. Its modules are the user's own: they hold the user's parameters and modes."""

    @property
    def model_inputs(self) -> tuple[str, ...]:
        """Names of the model inputs it reads."""
        ...

    @property
    def receives(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """Values that come along each incoming edge, by position in `Plan.edges`; sorted by name."""
        ...

    @property
    def sends(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """Values that leave along each outgoing edge, by position in `Plan.edges`; sorted by name."""
        ...

    @property
    def is_output(self) -> bool:
        """True for the one stage that computes the model's output."""
        ...

    @property
    def module(self) -> nn.Module:
        """Everything this stage computes with; `module.named_parameters()` gives the user's parameters."""
        ...

    @property
    def parameter_names(self) -> Mapping[str, str]:
        """Name in the user's model of each of `module.named_parameters()`, by its name there."""
        ...

    @property
    def buffer_names(self) -> Mapping[str, str]:
        """The same for buffers."""
        ...

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the stage on any number of samples.

        Args:
            values: the model inputs it reads and the values it receives, by name.

        Returns:
            The values it sends, by name, and the model's output (a tensor, or the tuple, list or dict the user's
            module returns) if `is_output`, else None.
        """
        ...

    def arrange(self, output: object) -> object:
        """Return the model's output, of which only plain tuples, lists and dicts are left, in the user's containers."""
        ...

    def replicate(self) -> "StageProgram":
        """Return a copy with its own parameters and buffers, for a second replica in the same process."""
        ...
