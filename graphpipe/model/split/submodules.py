"""The submodules that the stages of a model call: the user's own, and the parts of the layers that a plan splits."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, final

from torch import Tensor, fx, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.graph import OpSplit, ParameterSlice
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.layers import hooked
from graphpipe.model.capture.op_splits.split_nodes import REST
from graphpipe.model.hidden.compiled_modules import WRAPPED
from graphpipe.model.split.row_parts import EmbeddingBagRows, EmbeddingRows
from graphpipe.model.torch_private import compiled_form, with_child

Conversion = Literal["scatter", "gather"]
"""From whole values to the shard of a rank, or back."""


@final
class LinearPart(nn.Module):
    """Some columns or some outputs of a linear layer: (n, ..., inputs of the part) -> (n, ..., outputs of the part).

    Args:
        weight: of the part, a view of the user's parameter at first (see `run.weights.parameter_slices`).
        bias: of the part, or the user's own parameter; None adds none.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, values: Tensor) -> Tensor:
        """Return the product, with the bias."""
        return functional.linear(values, self.weight, self.bias)


@final
class EmbeddingPart(nn.Module):
    """Some columns of an embedding: (n, ...) int64 -> (n, ..., columns)."""

    def __init__(self, layer: nn.Embedding, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.padding_idx, self.scale_grad_by_freq = layer.padding_idx, layer.scale_grad_by_freq

    def forward(self, indices: Tensor) -> Tensor:
        """Return these columns of the rows."""
        return functional.embedding(
            indices, self.weight, padding_idx=self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )


@final
class EmbeddingBagPart(nn.Module):
    """Some columns of an embedding bag: (n, length) int64 -> (n, columns)."""

    def __init__(self, layer: nn.EmbeddingBag, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.mode = weight, layer.mode
        self.padding_idx, self.scale_grad_by_freq = layer.padding_idx, layer.scale_grad_by_freq

    def forward(self, indices: Tensor) -> Tensor:
        """Return the sums or means of these columns."""
        return functional.embedding_bag(
            indices,
            self.weight,
            mode=self.mode,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )


@final
class LinearSum(nn.Module):
    """Stands where the linear layer was, and passes on the sum of its parts."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, total: Tensor) -> Tensor:
        """Return the sum."""
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedNodes:
    """How the nodes of a stage divide the sequence."""

    reading: frozenset[fx.Node] = frozenset()
    """Those that read shards."""
    returning: frozenset[fx.Node] = frozenset()
    """Those whose value is a shard."""
    scattered: frozenset[tuple[fx.Node, fx.Node]] = frozenset()
    """Whole values with the nodes that read them as shards."""
    summed: frozenset[str] = frozenset()
    """Parameters of which a rank gets the gradient of its positions."""

    def conversion(self, value: fx.Node, reader: fx.Node | None) -> Conversion | None:
        """Return what becomes of a value before a node reads it; a reader of None is another stage, or the loss."""
        if reader is not None and (value, reader) in self.scattered:
            return "scatter"
        takes = reader is not None and reader in self.reading
        return "gather" if value in self.returning and not takes else None


class Sharing(Protocol):
    """Makes the parts of the user's submodules that one of several ranks computes."""

    @property
    def made(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Modules of the user, and those that stand for them."""
        ...

    def make(self, module: nn.Module, path: str) -> nn.Module:
        """Return what stands for a submodule at a path of the model."""
        ...

    def divide(self, captured: Captured, model: nn.Module, nodes: Sequence[fx.Node]) -> DividedNodes:
        """Return how the nodes of a stage divide the sequence."""
        ...

    def make_on_shards(self, module: nn.Module, path: str) -> nn.Module:
        """Return what stands for a submodule that is called with shards of the sequence."""
        ...

    def own_draws(self) -> AbstractContextManager[None]:
        """Draw other random numbers than the other ranks in a block."""
        ...

    def converted(self, how: Conversion) -> nn.Module:
        """Return the module that scatters whole values, or gathers shards."""
        ...


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
        """Names of the parts' slices of parameters, by identity."""
        self.sharing: dict[int, Sharing] = {}
        """What makes the parts of this rank, by stage whose replicas several ranks share."""
        self._made: dict[str, nn.Module] = {}
        self._slices: dict[str, nn.Parameter] = {}
        self._names = {id(each): name for name, each in reversed([*model.named_parameters(remove_duplicate=False)])}
        for split in splits:
            self._add(split)

    def get(self, path: str, stage: int = 0) -> nn.Module:
        """Return the submodule that a stage calls at a path: the user's, or a part of it."""
        if path in self._made:
            return self._made[path]
        own = self.model.get_submodule(path)
        outer, _, last = path.rpartition(".")
        if last == WRAPPED and compiled_form(wrapper := self.model.get_submodule(outer)) == "wrapper":
            own = wrapper  # which runs what torch.compile has made of it
        return self.sharing[stage].make(own, path) if stage in self.sharing else own

    def get_on_shards(self, path: str, stage: int) -> nn.Module:
        """Return the submodule that a stage calls at a path with shards of the sequence."""
        return self.sharing[stage].make_on_shards(self.model.get_submodule(path), path)

    def divide(self, captured: Captured, nodes: Sequence[fx.Node], stage: int) -> DividedNodes:
        """Return how the nodes of a stage divide the sequence."""
        return self.sharing[stage].divide(captured, self.model, nodes) if stage in self.sharing else DividedNodes()

    def follow_modes(self) -> None:
        """Put what stands for the user's modules into their modes, training or evaluation."""
        for sharing in self.sharing.values():
            for own, made in sharing.made:
                made.training = own.training

    def name_of(self, parameter: str) -> str:
        """Return the first name of a parameter, which may be tied to others."""
        return self._names[id(self.model.get_parameter(parameter))]

    def parameters_of(self, path: str) -> list[str]:
        """Return the names of the parameters that a submodule and those in it hold."""
        held = self.model.get_submodule(path).named_parameters(remove_duplicate=False)
        return [f"{path}.{name}" if path else name for name, _ in held]

    def slice_of(self, piece: ParameterSlice) -> nn.Parameter:
        """Return a slice of a parameter, by any of its names: the same one each time."""
        piece = replace(piece, parameter=self.name_of(piece.parameter))
        if piece.name not in self._slices:
            self._slices[piece.name] = self._slice(piece)
        return self._slices[piece.name]

    def _add(self, split: OpSplit) -> None:
        layer, called = self.model.get_submodule(split.layer), self.model.get_submodule(split.called)
        if hooked(layer) or hooked(called):
            raise InvalidInput(
                f"the plan splits '{split.layer}', which has a hook or a parametrised weight in this model",
                where="split",
                remedy="Remove it, or plan without splitting this operator.",
            )
        for number, path in enumerate(split.parts):
            self._made[path] = self._part(layer, split, number)
        if not split.is_called:
            assert isinstance(layer, nn.Linear)
            name = split.layer.rpartition(".")[2]
            self._made[f"{split.called}.{REST}"] = with_child(called, name, LinearSum(layer))

    def _part(self, layer: nn.Module, split: OpSplit, number: int) -> nn.Module:
        weight, rows = self._slice(split.slices[number]), split.by == "rows"
        if isinstance(layer, nn.Embedding):
            return EmbeddingRows(layer, weight, split.slices[number]) if rows else EmbeddingPart(layer, weight)
        if isinstance(layer, nn.EmbeddingBag):
            return EmbeddingBagRows(layer, weight, split.slices[number]) if rows else EmbeddingBagPart(layer, weight)
        bias = [self._slice(piece) for piece in split.bias_slices[number : number + 1]]
        if split.by == "inputs" and split.bias is not None and number == 0:
            bias = [self.model.get_parameter(split.bias)]
        return LinearPart(weight, bias[0] if bias else None)

    def _slice(self, piece: ParameterSlice) -> nn.Parameter:
        whole = self.model.get_parameter(piece.parameter)
        view = sliced(whole.detach(), piece)
        made = nn.Parameter(view, requires_grad=whole.requires_grad)
        self.slice_names[id(made)] = piece.name
        return made


def sliced(whole: Tensor, piece: ParameterSlice) -> Tensor:
    """Return a view of a slice of a tensor that has the shape of the whole parameter."""
    return whole.narrow(piece.dimension, piece.start, piece.stop - piece.start)
