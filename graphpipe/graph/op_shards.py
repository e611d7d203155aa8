"""How the tensor-parallel ranks of a stage share one operator: who holds what part."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.files.json_body import without_empty

ShardStyle = Literal[
    "column",
    "row",
    "channels",
    "vocabulary-rows",
    "vocabulary-columns",
    "vocabulary-logits",
    "heads",
    "experts",
    "copied",
]
"""What each rank holds of a submodule.

`column`: a part of the outputs of a linear layer or convolution, and of its bias. `row`: a part of its inputs; results
are summed. `channels`: a part of the channels of a norm, or of a convolution with groups, between a column and a row.
`vocabulary-rows`: a part of the rows of an embedding; results are summed. `vocabulary-columns`: a part of the logits of
a head, which are then gathered. `vocabulary-logits`: the same, but a loss that is a cross-entropy reads the parts, and
ranks exchange only its maxima and sums. `heads`: an attention module of which each rank computes some heads; where its
linear layers are submodules, they are listed beside it. `experts`: a mixture of which each rank computes a part of
every expert; results are summed. `copied`: whole on each rank, but it sees only what its rank shares, so gradients are
summed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmoduleShards:
    """What each rank holds of one submodule."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    submodule: str
    """Its fully qualified name, as in the user's module."""
    style: ShardStyle
    parts: int = 1
    """Of how many parts, one after the other, each rank has its share: 3 for queries, keys and values in one layer."""


SequenceEntrance = Literal["layers", "modules"]
"""Where a submodule that works on shards of the sequence gathers them: where its `layers` begin that ranks share, or
where the `modules` begin that hold these layers, such as attention whose forward reads the length before its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceModule:
    """A submodule that can be called with shards of the sequence."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    submodule: str
    """Its fully qualified name, as in the user's module."""
    entrance: SequenceEntrance
    """Where it gathers them, if ranks share layers of it."""
    returns_shards: bool = True
    """Whether its results are shards; a head returns whole logits."""
    summed: tuple[str, ...] = ()
    """Its parameters of which each rank gets the gradient of its positions. Ranks sum it once in a mini-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceShards:
    """How t ranks divide the sequence where they do not share layers (Korthikanti et al. 2022, section 4.2.2).

    Each of them holds and computes 1/t of the positions of norms, dropouts and residuals. The figures are those of
    `OpShards`, with what is divided by positions included. An all-gather or a reduce-scatter counts as half of an
    all-reduce, as it takes half of its steps.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    most: int
    """The greatest common divisor of the lengths. Each number of ranks divides it."""
    submodules: tuple["SequenceModule", ...]
    """Those that can be called with shards of the sequence."""
    flops_per_sample: float = 0.0
    traffic_bytes_per_sample: float = 0.0
    saved_bytes_per_sample: float = 0.0
    forward_reductions: float = 0.0
    forward_bytes_per_sample: float = 0.0
    backward_reductions: float = 0.0
    backward_bytes_per_sample: float = 0.0
    used: bool = False
    """Whether a plan asks for it (`sequence_parallel`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpShards:
    """How t ranks share an operator. What is not listed here, each of them holds and computes whole.

    The t ranks of a replica get the same samples. Each computes 1/t of `flops_per_sample`. They sum their parts,
    so that all of them have the same values before and after it (Megatron-LM, Shoeybi et al. 2019, section 3).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    most: int
    """The most ranks, such as the number of key-value heads. Each number of ranks divides it."""
    submodules: tuple[SubmoduleShards, ...]
    parameters: tuple[tuple[str, int], ...]
    """Parameters of which each rank holds 1/t: the name, as in `Op.parameters`, and the dimension that is divided."""
    parameter_bytes: float
    """Bytes of these parameters, all ranks together."""
    flops_per_sample: float
    """The part of `Work.flops_per_sample` that the ranks share."""
    traffic_bytes_per_sample: float = 0.0
    """The part of `Work.traffic_bytes_per_sample` that they share."""
    saved_bytes_per_sample: float = 0.0
    """The part of `Work.saved_bytes_per_sample` that they share."""
    forward_reductions: float = 1
    """All-reduces of a forward, one after the other."""
    forward_bytes_per_sample: float = 0.0
    """Bytes of the values that they sum, all of them together."""
    backward_reductions: float = 1
    """All-reduces of a backward, for the gradients of values."""
    backward_bytes_per_sample: float = 0.0
    """Bytes of the gradients that they sum, all of them together."""
    sequence: SequenceShards | None = None
    """How they can also divide the sequence; None: they cannot."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(body_of(self), "sequence")

    def divides_sequence(self, ranks: int) -> bool:
        """Return whether so many ranks divide the sequence, as the plan asks."""
        return self.sequence is not None and self.sequence.used and self.sequence.most % ranks == 0

    def figures(self, ranks: int) -> "OpShards":
        """Return these shards with what so many ranks share, the sequence included if they divide it."""
        divided = self.sequence
        if divided is None or not self.divides_sequence(ranks):
            return self
        return replace(
            self,
            flops_per_sample=divided.flops_per_sample,
            traffic_bytes_per_sample=divided.traffic_bytes_per_sample,
            saved_bytes_per_sample=divided.saved_bytes_per_sample,
            forward_reductions=divided.forward_reductions,
            forward_bytes_per_sample=divided.forward_bytes_per_sample,
            backward_reductions=divided.backward_reductions,
            backward_bytes_per_sample=divided.backward_bytes_per_sample,
        )

    def exchange_bytes(self, ranks: int) -> tuple[float, float]:
        """Return what an exchange of the sequence holds per sample while it runs, in a forward and in a backward.

        This is the whole values twice: those of all ranks, and the message that they arrive in.
        """
        if not self.divides_sequence(ranks):
            return 0.0, 0.0
        found = self.figures(ranks)
        forward, backward = found.forward_reductions, found.backward_reductions
        return (
            2 * found.forward_bytes_per_sample / forward if forward else 0.0,
            2 * found.backward_bytes_per_sample / backward if backward else 0.0,
        )

    def with_sequence(self, *, used: bool) -> "OpShards":
        """Return the same, dividing the sequence or not."""
        return self if self.sequence is None else replace(self, sequence=replace(self.sequence, used=used))

    @property
    def divides_logits(self) -> bool:
        """Whether ranks keep their parts of logits, so that the loss saves only these."""
        return any(each.style == "vocabulary-logits" for each in self.submodules)

    def shared_by(self, ranks: int) -> bool:
        """Return whether so many devices can share the operator."""
        return self.most % ranks == 0
