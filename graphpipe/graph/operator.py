"""The values that a graph consists of: operators, edges, shared parameters and inputs."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.files.json_body import without_empty
from graphpipe.graph.op_shards import OpShards
from graphpipe.graph.op_split import OpSplit

Precision = Literal["fp32", "bf16", "fp16"]
"""The dtypes of forwards: those of the model, or of torch's autocast to bfloat16 or float16."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
ProductPrecision = Literal["fp32", "bf16", "fp16", "fp8"]
"""The dtypes of products of matrices. Autocast does not know 8 bits, but layers such as torchao's multiply in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operator does with one sample, independent of any device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    flops_per_sample: float = 0.0
    """Floating-point operations of the forward pass. Input and weight gradient each cost the same."""
    traffic_bytes_per_sample: float = 0.0
    """Bytes the forward pass reads from and writes to device memory, without parameters."""
    saved_bytes_per_sample: float = 0.0
    """Bytes the forward pass keeps for the backward pass (unique storages, without parameters)."""
    saved_bytes_per_forward: float = 0.0
    """Bytes the forward pass keeps for the backward pass besides, however many samples it has: copies of weights that
    autocast makes, and other results of parameters alone."""
    kernels: int = 1
    """Kernel launches of the forward pass."""
    step_kernels: int = 0
    """Kernels among them that a recurrent layer launches step by step: each waits for the one before, and is too small
    for its time to depend on how well a device is filled."""
    without_formula: tuple[str, ...] = ()
    """Operators of other libraries of which only the bytes are counted, because their FLOPs are not known."""
    products: ProductPrecision | None = None
    """The precision of most of the FLOPs. None: that for which the graph was captured."""
    traffic_bytes_per_forward: float = 0.0
    """Bytes that the forward pass reads and writes besides, however many samples it has: what it computes of parameters
    alone, such as the norm of a weight, or a weight in 8 bits."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Most operators have the body that they had before these were told apart.
        later = "step_kernels", "without_formula", "products", "traffic_bytes_per_forward"
        return without_empty(body_of(self), *later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times that came with an imported graph, measured on a device that is not recorded."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    forward_seconds: float
    backward_seconds: float
    samples: int
    """Samples in the measured batch. Other batch sizes are scaled linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """A part of a forward that computes something from several samples, such as a mean over them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    where: str
    """The submodule whose forward does so; empty for the model itself."""
    operator: str
    """Of torch, by its name; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One node: a call of one of the user's submodules, or operations between them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str = "module"
    parameters: tuple[str, ...] = ()
    """Fully qualified names of the parameters, as in the user's module."""
    parameter_bytes: float = 0.0
    output_bytes_per_sample: float = 0.0
    work: Work = field(default_factory=Work)
    measured: Measured | None = None
    model_inputs: tuple[str, ...] = ()
    """Names of the model inputs this operator reads (every rank has them)."""
    trainable: bool = True
    """Whether a parameter is trained. It is ignored for operators without parameters."""
    whole_batch: bool = False
    """Whether the operator needs the whole mini-batch at once (contrastive losses)."""
    without_gradient: tuple[str, ...] = ()
    """Names of values that it sends and that get no gradient, although it or operators before it train: masks, indices
    or detached values. The name is empty for a value that edges do not list."""
    mixes: Mixing | None = None
    """How it mixes samples, if it may get parts of the mini-batch."""
    splits: tuple[OpSplit, ...] = ()
    """How the operator can be split (`graph.splits`): in at most one way by inputs, outputs and rows each."""
    shards: OpShards | None = None
    """How tensor-parallel ranks share it; None: each of them computes it whole."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Files of operators that mix no samples, and are not shared, are what they were before this was noted.
        return without_empty(body_of(self), "mixes", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeValue:
    """One of several values that an operator sends."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """The name of the value, unique among the values of its operator."""
    bytes_per_sample: float


class Read(NamedTuple):
    """A value that `target` reads."""

    source: str
    target: str
    value: tuple[str, str]
    """The source and the name of the value. The name is empty if the edge does not list its values."""
    bytes_per_sample: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`source`'s output is read by `target`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    target: str
    bytes_per_sample: float = 0.0
    values: tuple[EdgeValue, ...] = ()
    """The values that `target` reads, if `source` sends several. If this is empty, all readers of `source` read the
    same output, and a stage that reads it several times needs the largest of their bytes."""

    @property
    def reads(self) -> tuple[Read, ...]:
        """What `target` reads, value by value."""
        if not self.values:
            return (Read(self.source, self.target, (self.source, ""), self.bytes_per_sample),)
        return tuple(
            Read(self.source, self.target, (self.source, value.name), value.bytes_per_sample) for value in self.values
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A parameter that several operators hold: tied weights, or a submodule that is called twice."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """Fully qualified name of the parameter, as in `Op.parameters`."""
    bytes: float
    trainable: bool = True
    """Whether the stages that hold the parameter sum its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input tensor of the model. Its first dimension is samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sample_shape: tuple[int, ...]
    """Shape of a sample: that of the tensor without its first dimension."""
    dtype: str
    """The type of the elements, as torch prints it without `torch.`: float32, int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """A part of the inputs that a forward takes: a container, a value in it that is not a tensor, or a tensor."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    path: tuple[str | int, ...]
    """The parameter of the forward, and the keys that lead to the part."""
    kind: str
    """`tensor`, `constant`, `dict`, `list`, `tuple`, or the class of another container as `module:Class`."""
    value: bool | int | float | str | None = None
    """Of a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """Which tensors a model takes, and in which containers."""

    names: tuple[str, ...]
    """Of the tensors, in order."""
    parts: tuple[InputPart, ...] = ()
    """All parts, a container before what it holds. Empty if every argument of the forward is a tensor."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the forward, in order."""
        return tuple(dict.fromkeys(str(part.path[0]) for part in self.parts)) or self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a graph was captured from a module, so that every rank can capture it again."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    method: str
    """How the model was captured: `export` (torch.export) or `declared` (one operator per submodule of a DagModule)."""
    split: tuple[str, ...] = ()
    """Submodules whose own operators were split out."""
    opaque: tuple[str, ...] = ()
    """Submodules kept whole that are split by default."""
    whole_batch: tuple[str, ...] = ()
    """Submodules or operators that need the whole mini-batch."""
    arguments: tuple[tuple[str, bool | int | float | str], ...] = ()
    """Arguments of the forward that are not tensors, by name."""
    outputs: tuple[str, ...] = ()
    """Which entries of the forward's result are the model's output; empty for all of it."""
    split_ops: tuple[OpSplit, ...] = ()
    """Operators that were split after the capture, in order."""
    forms: tuple[tuple[str, str], ...] = ()
    """Inputs that the forward takes in another form than with samples in front, with their forms, by name."""
    parts: tuple[InputPart, ...] = ()
    """The parts of the inputs, if the forward takes something else than tensors (see `InputLayout`)."""
    modes_differ: bool = False
    """Whether the forward computes other values in evaluation than in training."""
    precision: Precision | None = None
    """The precision of the forwards whose bytes the graph counts. None, as in files of earlier versions: the dtypes of
    the model are counted, and a run may have any precision."""
    fused_attention: bool = False
    """Whether attention with dropout is counted as one kernel, as GPUs compute it. A CPU makes the weights of all pairs
    of tokens, and keeps them for the backward."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Other graphs have the body that they had before GPUs were told from CPUs, and before inputs had parts.
        return without_empty(body_of(self), "fused_attention", "parts")
