"""How the tensor-parallel ranks of a stage share one operator: who holds what part."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

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


HALF = 0.5
"""What an all-gather or a reduce-scatter is of an all-reduce: half of its steps, and half of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """All-reduces between the ranks of a replica, one after the other. An all-gather counts as `HALF` of one."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    reductions: float = 0.0
    """How many there are for each micro-batch."""
    bytes_per_sample: float = 0.0
    """Bytes that they sum, all of them together."""
    bytes: float = 0.0
    """Bytes besides, which do not depend on the samples, such as those of parameters."""

    def __add__(self, other: "Exchanges") -> "Exchanges":
        """Return both."""
        return Exchanges(
            reductions=self.reductions + other.reductions,
            bytes_per_sample=self.bytes_per_sample + other.bytes_per_sample,
            bytes=self.bytes + other.bytes,
        )

    def without(self, other: "Exchanges") -> "Exchanges":
        """Return these without some of them."""
        return Exchanges(
            reductions=max(0.0, self.reductions - other.reductions),
            bytes_per_sample=max(0.0, self.bytes_per_sample - other.bytes_per_sample),
            bytes=max(0.0, self.bytes - other.bytes),
        )


NOTHING = Exchanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFigures:
    """What t ranks share of an operator's work, and what they exchange for it.

    Each of them computes, reads and saves 1/t of what is shared.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    flops_per_sample: float
    """The part of `Work.flops_per_sample` that they share."""
    traffic_bytes_per_sample: float = 0.0
    """The part of `Work.traffic_bytes_per_sample` that they share."""
    saved_bytes_per_sample: float = 0.0
    """The part of `Work.saved_bytes_per_sample` that they share."""
    forward: Exchanges = NOTHING
    """Of values, in a forward."""
    backward: Exchanges = NOTHING
    """Of gradients of values, in a backward."""
    weights: Exchanges = NOTHING
    """Of gradients that only parameters need, in a backward: of parameters that each rank has whole and of which it
    sees a part, and of the values of an embedding that are shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceShards:
    """How t ranks divide the sequence where they do not share layers (Korthikanti et al. 2022, section 4.2.2).

    Each of them holds and computes 1/t of the positions of norms, dropouts and residuals.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    most: int
    """The greatest common divisor of the lengths. Each number of ranks divides it."""
    submodules: tuple["SequenceModule", ...]
    """Those that can be called with shards of the sequence."""
    figures: ShardFigures
    """With what is divided by positions included, but for what is gathered between operators."""
    returned: tuple[str, ...] = ()
    """Values on its edges that are shards (the name in `Read.value`). They are gathered for another stage, and for an
    operator that reads them whole."""
    taken: tuple[tuple[str, str], ...] = ()
    """Values of other operators that it reads as shards (`Read.value`). The gradient of one that is whole, as those of
    other stages are, is gathered."""
    summed_bytes: float = 0.0
    """Bytes of the parameters of which each rank gets the gradient of its positions. They are summed once in a
    mini-batch."""
    used: bool = False
    """Whether a plan asks for it (`sequence_parallel`)."""

    @model_validator(mode="before")
    @classmethod
    def _from_older(cls, body: Any) -> Any:
        return _with_figures(body, reductions=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpShards:
    """How t ranks share an operator. What is not listed here, each of them holds and computes whole.

    The t ranks of a replica get the same samples. They sum their parts, so that all of them have the same values before
    and after it (Megatron-LM, Shoeybi et al. 2019, section 3).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    most: int
    """The most ranks, such as the number of key-value heads. Each number of ranks divides it."""
    submodules: tuple[SubmoduleShards, ...]
    parameters: tuple[tuple[str, int], ...]
    """Parameters of which each rank holds 1/t: the name, as in `Op.parameters`, and the dimension that is divided."""
    parameter_bytes: float
    """Bytes of these parameters, all ranks together."""
    figures: ShardFigures
    """Of layers that ranks share."""
    sequence: SequenceShards | None = None
    """How they can also divide the sequence; None: they cannot."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(body_of(self), "sequence")

    @model_validator(mode="before")
    @classmethod
    def _from_older(cls, body: Any) -> Any:
        return _with_figures(body, reductions=1.0)

    def divides_sequence(self, ranks: int) -> bool:
        """Return whether so many ranks divide the sequence, as the plan asks."""
        return self.sequence is not None and self.sequence.used and self.sequence.most % ranks == 0

    def figures_of(self, ranks: int) -> ShardFigures:
        """Return what so many ranks share, the sequence included if they divide it."""
        divided = self.sequence if self.divides_sequence(ranks) else None
        return self.figures if divided is None else divided.figures

    def exchange_bytes(self, ranks: int) -> tuple[float, float]:
        """Return what an exchange of the sequence holds per sample while it runs, in a forward and in a backward.

        This is the whole values twice: those of all ranks, and the message that they arrive in.
        """
        if not self.divides_sequence(ranks):
            return 0.0, 0.0
        found = self.figures_of(ranks)
        back = found.backward if found.backward.reductions else found.weights
        held = (
            2 * each.bytes_per_sample / each.reductions if each.reductions else 0.0 for each in (found.forward, back)
        )
        return next(held), next(held)

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


_DIVIDED = ("flops_per_sample", "traffic_bytes_per_sample", "saved_bytes_per_sample")
_PASSES = ("forward", "backward")


def _with_figures(body: Any, *, reductions: float) -> Any:
    # Files of 0.1 have the figures beside the other fields. `reductions` are those of a pass that does not say them.
    if not isinstance(body, dict) or "figures" in body:
        return body
    rest: dict[str, Any] = {**body}
    figures: dict[str, Any] = {name: rest.pop(name) for name in _DIVIDED if name in rest}
    for name in _PASSES:
        count, summed = rest.pop(f"{name}_reductions", reductions), rest.pop(f"{name}_bytes_per_sample", 0.0)
        figures[name] = {"reductions": count, "bytes_per_sample": summed}
    return rest | {"figures": figures}
