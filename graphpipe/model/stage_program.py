"""The interface of a stage program, which the runtime runs for one stage."""

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
    """The name of the value: unique in the model, the same on every rank."""
    sample_shape: tuple[int, ...]
    """Shape of a sample in the example inputs: that of the tensor without its first dimension."""
    dtype: torch.dtype
    requires_grad: bool
    """Whether the consumer sends a gradient back: it is floating point, and a trainable parameter is upstream."""

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.sample_shape) * self.dtype.itemsize


class StageProgram(Protocol):
    """One stage of a split model. Its modules are the user's own, with the user's parameters and modes."""

    @property
    def model_inputs(self) -> tuple[str, ...]:
        """Names of the model inputs that it reads."""
        ...

    @property
    def receives(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """Values on each incoming edge, by position in `Plan.edges`; sorted by name."""
        ...

    @property
    def sends(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """Values on each outgoing edge, by position in `Plan.edges`; sorted by name."""
        ...

    @property
    def is_output(self) -> bool:
        """Whether this is the only stage that returns the model's output."""
        ...

    @property
    def output_dtypes(self) -> tuple[torch.dtype | None, ...]:
        """Dtypes of the leaves of the model's output; None for what is not a tensor. Empty: they are not known."""
        ...

    @property
    def module(self) -> nn.Module:
        """The module that this stage runs; its parameters are the user's."""
        ...

    @property
    def parameter_names(self) -> Mapping[str, str]:
        """Names in the user's model, by name in `module.named_parameters()`."""
        ...

    @property
    def buffer_names(self) -> Mapping[str, str]:
        """Names in the user's model, by name in `module.named_buffers()`; not of those that a forward makes later."""
        ...

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the stage on any number of samples.

        Args:
            values: the model inputs that it reads and the values that it receives, by name.

        Returns:
            The values that it sends, by name, and the model's output if `is_output`, else None. The output is a tensor,
            or the tuple, list or dict that the user's module returns.
        """
        ...

    def arrange(self, output: object) -> object:
        """Return the model's output in the user's containers, given its leaves in plain tuples, lists and dicts."""
        ...

    def replicate(self) -> "StageProgram":
        """Return a copy with its own parameters and buffers, for a second replica in the same process."""
        ...
