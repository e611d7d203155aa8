"""How an operator can be split: by the branches that it concatenates, the features that it computes, or its rows.

branch 0 -+                            branch 0 -> part 0 -+
branch 1 -+-> concatenate -> linear    branch 1 -> part 1 -+-> sum           by inputs
branch 2 -+                            branch 2 -> part 2 -+

                                               +-> part 0 -+
value -> linear or embedding           value --+-> part 1 -+-> concatenate   by outputs

                                               +-> part 0 -+
indices -> embedding                   indices-+-> part 1 -+-> sum           by rows
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from pydantic import ConfigDict

from graphpipe.graph.parameter_slice import ParameterSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBranch:
    """The input of one part, and what the part has: columns of a linear layer's input, computed features, or rows."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str | None
    """The operator that computes the input; None for an input of the model."""
    model_input: str | None = None
    """The input of the model that the branch is, if no operator computes it."""
    start: int
    stop: int
    """The column, feature or row after the last one of the part."""
    bytes_per_sample: float
    """Bytes per sample of the branch's input."""
    value: str = ""
    """The name of the value, if the source sends several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSplit:
    """A layer inside one operator. What the operator computes after the layer stays in it, behind the sum.

    By inputs, the first part adds the bias. By outputs, each part adds its features of the bias. By rows, each part
    looks up the indices in its rows of an embedding, and has zeros for all others.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    """The operator that is split. By inputs, it computes the concatenation too."""
    by: Literal["inputs", "outputs", "rows"] = "inputs"
    kind: Literal["Linear", "Embedding", "EmbeddingBag"] = "Linear"
    layer: str
    """Path of the layer in the user's module."""
    is_called: bool
    """Whether the model calls the layer itself, or else the submodule that it is a child of."""
    weight: str
    """Fully qualified name of the weight: (outputs, inputs) of a linear layer, (rows, outputs) of an embedding."""
    weight_bytes: float
    bias: str | None
    bias_bytes: float
    flops_per_sample: float
    """Floating-point operations of the layer."""
    output_bytes_per_sample: float
    """Bytes that the layer returns."""
    branches: tuple[SplitBranch, ...]
    """Branches of all parts, in order. By outputs or rows, a graph lists one branch with all of them, until `into`
    divides it."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the operators for the parts."""
        return tuple(f"{self.layer}.part{number}" for number in range(len(self.branches)))

    @property
    def called(self) -> str:
        """Path of the submodule that the model calls: the layer, or the submodule that it is a child of."""
        return self.layer if self.is_called else self.layer.rpartition(".")[0]

    @property
    def slices(self) -> tuple[ParameterSlice, ...]:
        """What every part has of the weight."""
        dimension = 0 if self.by == "rows" or (self.by, self.kind) == ("outputs", "Linear") else 1
        return tuple(
            ParameterSlice(parameter=self.weight, dimension=dimension, start=branch.start, stop=branch.stop)
            for branch in self.branches
        )

    @property
    def bias_slices(self) -> tuple[ParameterSlice, ...]:
        """What every part has of the bias, by outputs. By inputs it is empty, because the first part has all of it."""
        if self.bias is None or self.by == "inputs":
            return ()
        return tuple(replace(piece, parameter=self.bias, dimension=0) for piece in self.slices)

    @property
    def sums(self) -> bool:
        """Whether the results of the parts are added, and not concatenated."""
        return self.by != "outputs"

    @property
    def input_bytes_per_sample(self) -> float:
        """Bytes of what the layer reads."""
        branch_bytes = [branch.bytes_per_sample for branch in self.branches]
        return sum(branch_bytes) if self.by == "inputs" else branch_bytes[0]

    def share(self, branch: SplitBranch) -> float:
        """Return the share of the layer's work and weight that a part has."""
        return (branch.stop - branch.start) / self.branches[-1].stop

    def into(self, parts: int) -> "OpSplit":
        """Return a split by outputs or rows in parts of nearly equal numbers of features or rows."""
        (whole,) = self.branches
        stops = [whole.stop * number // parts for number in range(parts + 1)]
        branches = (replace(whole, start=start, stop=stop) for start, stop in pairwise(stops))
        return replace(self, branches=tuple(branches))

    def naming(self, sources: Collection[str]) -> "OpSplit":
        """Return this split with the names of values only from these operators: those that send several values."""
        branches = (branch if branch.source in sources else replace(branch, value="") for branch in self.branches)
        return replace(self, branches=tuple(branches))

    def cuts_like(self, other: "OpSplit") -> bool:
        """True if the same layer is cut into the same features, for samples of any shape."""
        ours, theirs = ([split.slices, split.layer, split.by, split.bias, split.is_called] for split in (self, other))
        return ours == theirs
