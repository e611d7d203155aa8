"""Operators and what lies between them: the values that a graph is made of."""

from dataclasses import dataclass, field

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operator does with one sample, independent of any device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    flops_per_sample: float = 0.0
    """Floating-point operations of the forward pass; input and weight gradient cost as much each."""
    traffic_bytes_per_sample: float = 0.0
    """Bytes the forward pass reads and writes to device memory, parameters apart."""
    saved_bytes_per_sample: float = 0.0
    """Bytes the forward pass keeps for the backward pass (unique storages, parameters apart)."""
    kernels: int = 1
    """Kernel launches of the forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times that came with an imported graph, on its own, unrecorded device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    forward_seconds: float
    backward_seconds: float
    samples: int
    """Samples in the batch the times were taken with; other batch sizes are scaled linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One node: a call of one of the user's submodules, or a piece of glue between them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str = "module"
    parameters: tuple[str, ...] = ()
    """Fully qualified parameter names, as in the user's module."""
    parameter_bytes: float = 0.0
    output_bytes_per_sample: float = 0.0
    work: Work = field(default_factory=Work)
    measured: Measured | None = None
    model_inputs: tuple[str, ...] = ()
    """Names of the model inputs this operator reads (they are at hand on every rank)."""
    trainable: bool = True
    """False when every parameter is frozen; operators without parameters do not matter."""
    whole_batch: bool = False
    """True when the operator needs the whole mini-batch at once (contrastive losses)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`source`'s output is read by `target`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    target: str
    bytes_per_sample: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A parameter that several operators hold: tied weights, or a submodule that is called twice."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """As in `Op.parameters`."""
    bytes: float
    trainable: bool = True
    """Then the stages that hold it sum its gradient, if they are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor the model takes; its first dimension is samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sample_shape: tuple[int, ...]
    """Shape without the first dimension."""
    dtype: str
    """As torch prints it, without `torch.`: float32, int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a graph was captured from a module, so that every rank can capture it again."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    method: str
    """`export` (torch.export) or `declared` (one operator per submodule of a DagModule)."""
    split: tuple[str, ...] = ()
    """Submodules whose own operators were split out."""
    opaque: tuple[str, ...] = ()
    """Submodules kept whole against the default granularity."""
    whole_batch: tuple[str, ...] = ()
    """Submodules or operators that need the whole mini-batch."""
    arguments: tuple[tuple[str, bool | int | float | str], ...] = ()
    """What the forward was given by name besides tensors."""
    outputs: tuple[str, ...] = ()
    """Which entries of what the forward returns are the model's output; empty for all of it."""
