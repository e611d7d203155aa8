"""The part of a layer that one of the ranks of a replica computes: of linear layers, embeddings and heads."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.graph import ParameterSlice
from graphpipe.model.shards.logits.divided_logits import logits
from graphpipe.model.shards.team import Border, Entrance, ShardTeam, join
from graphpipe.model.split.row_parts import RowRange


@final
class ColumnLinear(nn.Module):
    """Some outputs of a linear layer: (n, ..., inputs) -> (n, ..., outputs of this rank).

    Args:
        weights: rows of the weight (outputs, inputs): of one piece, or of several that lie one behind the other in the
            outputs of this rank, such as those of queries, keys and values.
        biases: the same of the bias; empty if there is none.
        entrance: of the layer's input.
        transposed: whether the weight is (inputs, outputs).
        joined: the outputs of all ranks, if the layer returns these; None: it returns its own.
        read_by_loss: whether they are logits, of which a cross-entropy reads the parts.
        draws: whether a dropout follows, which must drop other values on each rank.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        biases: Sequence[nn.Parameter],
        entrance: Entrance,
        *,
        transposed: bool = False,
        joined: int | None = None,
        read_by_loss: bool = False,
        draws: bool = False,
    ) -> None:
        super().__init__()
        self.entrance, self.dimension, self.joined, self.draws = entrance, int(transposed), joined, draws
        self.join = logits if read_by_loss else join
        self._weights, self._biases = _register(self, "weight", weights), _register(self, "bias", biases)

    @property
    def in_features(self) -> int:
        """The number of inputs."""
        return self.get_parameter(self._weights[0]).shape[1 - self.dimension]

    @property
    def out_features(self) -> int:
        """The number of outputs of this rank."""
        return sum(self.get_parameter(name).shape[self.dimension] for name in self._weights)

    def forward(self, values: Tensor) -> Tensor:
        """Return these outputs."""
        entered = self.entrance.enter(values)
        if self.draws and self.training:
            self.entrance.team.enter_region()
        weights = [self.get_parameter(name) for name in self._weights]
        biases = [self.get_parameter(name) for name in self._biases] or [None] * len(weights)
        parts = [
            functional.linear(entered, weight.t() if self.dimension else weight, bias)
            for weight, bias in zip(weights, biases, strict=True)
        ]
        found = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return found if self.joined is None else self.join(found, self.entrance.team, self.joined)


@final
class RowLinear(nn.Module):
    """A linear layer of whose inputs each rank has some: (n, ..., inputs of this rank) -> (n, ..., outputs).

    Args:
        weight: columns of the weight (outputs, inputs).
        bias: the whole bias, which is added once; None adds none.
        team: the ranks.
        border: around the layers that end here.
        transposed: whether the weight is (inputs, outputs).
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        team: ShardTeam,
        border: Border,
        *,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.team, self.border, self.transposed = weight, bias, team, border, transposed

    @property
    def in_features(self) -> int:
        """The number of inputs of this rank."""
        return self.weight.shape[0 if self.transposed else 1]

    @property
    def out_features(self) -> int:
        """The number of outputs."""
        return self.weight.shape[1 if self.transposed else 0]

    def forward(self, values: Tensor) -> Tensor:
        """Return the sum of the products of all ranks, with the bias."""
        if self.border.draws_alike:
            self.team.leave_region()
        part = functional.linear(values, self.weight.t() if self.transposed else self.weight)
        total = self.border.leave(part, self.team)
        return total if self.bias is None else total + self.bias


@final
class VocabularyRows(nn.Module):
    """Some rows of an embedding: (n, ...) indices -> (n, ..., width), the same on all ranks.

    Args:
        layer: the whole embedding.
        weight: the rows of this rank.
        piece: which rows.
        team: the ranks.
        border: where the rows leave.
    """

    def __init__(
        self, layer: nn.Embedding, weight: nn.Parameter, piece: ParameterSlice, team: ShardTeam, border: Border
    ) -> None:
        super().__init__()
        self.weight, self.team, self.border = weight, team, border
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.range = RowRange(piece, layer.num_embeddings, layer.padding_idx, fails_everywhere=True)
        self.scale_grad_by_freq = layer.scale_grad_by_freq

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows."""
        here, others = self.range(indices)
        found = functional.embedding(
            here, self.weight, padding_idx=self.range.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return self.border.leave(found.masked_fill(others[..., None], 0.0), self.team)


def _register(module: nn.Module, name: str, parameters: Sequence[nn.Parameter]) -> tuple[str, ...]:
    names = (name,) if len(parameters) == 1 else tuple(f"{name}_{at}" for at in range(len(parameters)))
    for each, parameter in zip(names, parameters, strict=True):
        module.register_parameter(each, parameter)
    if not parameters:
        module.register_parameter(name, None)
    return names if parameters else ()
