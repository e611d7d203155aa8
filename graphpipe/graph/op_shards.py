"""How the tensor-parallel ranks of a stage share one operator: who holds what part."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

ShardStyle = Literal["column", "row", "vocabulary-rows", "vocabulary-columns", "heads", "experts", "copied"]
"""What each rank holds of a submodule.

`column`: a part of the outputs of a linear layer, and of its bias. `row`: a part of its inputs; results are summed.
`vocabulary-rows`: a part of the rows of an embedding; results are summed. `vocabulary-columns`: a part of the logits of
a head, which are then gathered. `heads`: an attention module of which each rank computes some heads; where its linear
layers are submodules, they are listed beside it. `experts`: a mixture of which each rank computes a part of every
expert; results are summed. `copied`: whole on each rank, but it sees only what its rank shares, so gradients are
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
    forward_reductions: int = 1
    """All-reduces of a forward, one after the other."""
    forward_bytes_per_sample: float = 0.0
    """Bytes of the values that they sum, all of them together."""
    backward_reductions: int = 1
    """All-reduces of a backward, for the gradients of values."""
    backward_bytes_per_sample: float = 0.0
    """Bytes of the gradients that they sum, all of them together."""

    def shared_by(self, ranks: int) -> bool:
        """Return whether so many devices can share the operator."""
        return self.most % ranks == 0
