"""The submodules that the stages of a model call: the user's own, and the parts of the layers that a plan splits."""

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.graph import OpSplit, ParameterSlice
from graphpipe.model.capture.op_splits.find_splits import hooked
from graphpipe.model.capture.op_splits.split_nodes import REST
from graphpipe.model.torch_private import with_child


@final
class LinearPart(nn.Module):
    """The product of one branch with its columns of a linear layer's weight: (n, ..., columns) -> (n, ..., outputs).

    The weight begins as a view of the user's parameter (see `run.weights.slices`). The bias, in the first part, is the
    user's own parameter.
    """

    def __init__(self, linear: nn.Linear, piece: ParameterSlice, *, biased: bool) -> None:
        super().__init__()
        view = linear.weight.detach().narrow(piece.dimension, piece.start, piece.stop - piece.start)
        self.weight = nn.Parameter(view, requires_grad=linear.weight.requires_grad)
        self.bias = linear.bias if biased else None

    def forward(self, values: Tensor) -> Tensor:
        """Return the product, with the bias in the first part."""
        return functional.linear(values, self.weight, self.bias)


@final
class LinearSum(nn.Module):
    """Stands where the linear layer was, and passes on the sum of its parts."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, total: Tensor) -> Tensor:
        """Return the sum."""
        return total


class Submodules:
    """The submodules of a model by the paths that its stages call. Parts are made once.

    Args:
        model: the user's module.
        splits: of the plan's graph.

    Raises:
        InvalidInput: a layer that the plan splits has a hook or a parametrised weight.
    """

    def __init__(self, model: nn.Module, splits: Sequence[OpSplit]) -> None:
        self.model = model
        self.slice_names: dict[int, str] = {}
        """Names of the parts' weights, by identity."""
        self._made: dict[str, nn.Module] = {}
        for split in splits:
            self._add(split)

    def get(self, path: str) -> nn.Module:
        """Return the submodule at a path."""
        return self._made[path] if path in self._made else self.model.get_submodule(path)

    def _add(self, split: OpSplit) -> None:
        linear, called = self.model.get_submodule(split.linear), self.model.get_submodule(split.called)
        if hooked(linear) or hooked(called):
            raise InvalidInput(
                f"the plan splits '{split.linear}', which has a hook or a parametrised weight in this model",
                where="split",
                remedy="Remove it, or plan without splitting this operator.",
            )
        assert isinstance(linear, nn.Linear)
        for number, (path, piece) in enumerate(zip(split.parts, split.slices, strict=True)):
            part = LinearPart(linear, piece, biased=number == 0)
            self.slice_names[id(part.weight)] = piece.name
            self._made[path] = part
        if not split.is_called:
            name = split.linear.rpartition(".")[2]
            self._made[f"{split.called}.{REST}"] = with_child(called, name, LinearSum(linear))
