"""How an operator can be split: a linear layer over concatenated branches is the sum of one product per branch.

branch 0 -+                          branch 0 -> part 0 -+
branch 1 -+-> concat -> linear       branch 1 -> part 1 -+-> sum
branch 2 -+                          branch 2 -> part 2 -+
"""

from dataclasses import dataclass

from pydantic import ConfigDict

from graphpipe.graph.parameter_slice import ParameterSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBranch:
    """One of the concatenated values, and the columns of the weight that it is multiplied with."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str | None
    """The operator that computes it; None for an input of the model."""
    model_input: str | None = None
    """The input of the model that it is."""
    start: int
    stop: int
    """Exclusive."""
    bytes_per_sample: float
    """Of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSplit:
    """A linear layer over concatenated branches, inside one operator.

    The first part adds the bias. What the operator computes after the linear layer stays in it, behind the sum.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    """The operator, which computes the concatenation too."""
    linear: str
    """Path of the linear layer in the user's module."""
    is_called: bool
    """Whether the model calls the linear layer itself, or else the submodule that it is a child of."""
    weight: str
    """Fully qualified name; (outputs, inputs)."""
    weight_bytes: float
    bias: str | None
    bias_bytes: float
    flops_per_sample: float
    """Of the linear layer."""
    output_bytes_per_sample: float
    """Of the linear layer, and so of every part."""
    branches: tuple[SplitBranch, ...]
    """In the order of concatenation."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the operators for the branches."""
        return tuple(f"{self.linear}.part{number}" for number in range(len(self.branches)))

    @property
    def called(self) -> str:
        """Path of the submodule that the model calls: the linear layer, or the submodule that it is a child of."""
        return self.linear if self.is_called else self.linear.rpartition(".")[0]

    @property
    def slices(self) -> tuple[ParameterSlice, ...]:
        """What every part has of the weight."""
        return tuple(
            ParameterSlice(parameter=self.weight, dimension=1, start=each.start, stop=each.stop)
            for each in self.branches
        )

    def cuts_like(self, other: "OpSplit") -> bool:
        """True if the same layer is cut into the same columns, for samples of any shape."""
        ours, theirs = ([each.slices, each.linear, each.bias, each.is_called] for each in (self, other))
        return ours == theirs

    @property
    def input_bytes_per_sample(self) -> float:
        """Bytes of the concatenated values."""
        return sum(each.bytes_per_sample for each in self.branches)

    def share(self, branch: SplitBranch) -> float:
        """Return the share of the linear layer's work and weight that a branch has."""
        return (branch.stop - branch.start) / self.branches[-1].stop
