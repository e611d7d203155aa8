"""What one node of a module graph computes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from graphpipe.graph import ProductPrecision

SAMPLES = (8, 64)
"""Batch sizes of two runs: a dimension that has the first size, then the second, is the samples."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """What one node computes from a batch of SAMPLES[1] samples."""

    flops: float = 0.0
    products: dict[ProductPrecision, float] = field(default_factory=dict[ProductPrecision, float])
    """FLOPs by precision, but for those of fp32."""
    traffic_bytes: float = 0.0
    state_traffic_bytes: float = 0.0
    """Bytes of what is computed of parameters and buffers alone, which does not depend on the samples."""
    kernels: int = 0
    step_kernels: int = 0
    """Kernels of the steps of recurrent layers, which `kernels` counts too."""
    without_formula: set[str] = field(default_factory=set[str])
    """Operators of other libraries, of which only bytes are known: `torchvision::deform_conv2d`."""
    saved: dict[int, float] = field(default_factory=dict[int, float])
    """Bytes saved for the backward pass, by memory key; without parameters."""
    saved_of_state: dict[int, float] = field(default_factory=dict[int, float])
    """The same of what was computed of parameters alone, such as copies by autocast: whatever the samples."""
    made: set[int] = field(default_factory=set[int])
    """Keys of the memory that the node allocated or returned."""
    shape: tuple[int, ...] | None = None
    """Shape of its value; None if that is not a tensor."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Shapes of its value for both numbers of samples, if they are known."""
    sample_shape: tuple[int, ...] | None = None
    """Shape without the first dimension, if only the first dimension depends on the number of samples."""
    samples_at: int | None = None
    """The dimension that is samples, if only this one depends on the number of samples."""
    rows: int = 0
    """Rows of its first dimension for each sample, if only this one depends on the number of samples."""
    grows: bool = False
    """Whether it is a tensor, or may contain one, of which a dimension depends on the number of samples."""
    compares: bool = False
    """Whether two dimensions of its value are samples, which means that samples are compared with each other."""
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False
    repeats: fx.Node | None = None
    """An earlier call that equals this one, which was not run."""

    def placed(self, place: Callable[[int], int]) -> "Reading":
        """Return this reading for other memory, given the key for each key."""
        saved = {place(key): count for key, count in self.saved.items()}
        casts = {place(key): count for key, count in self.saved_of_state.items()}
        return replace(self, saved=saved, saved_of_state=casts, made={place(key) for key in self.made})

    @property
    def bytes_per_sample(self) -> float:
        """Bytes of its value per sample; 0 unless `sample_shape` is known."""
        return (
            float(torch.Size(self.sample_shape).numel() * self.dtype.itemsize) if self.sample_shape is not None else 0.0
        )

    @property
    def elements(self) -> float:
        """Elements of its value divided by the number of samples; 0 if their number depends on values."""
        if self.shape is None or not all(type(size) is int for size in self.shape):
            return 0.0
        return torch.Size(self.shape).numel() / SAMPLES[1]
