"""Some heads of attention whose forward does not take any number of heads: of torch, and of T5."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.model.shards.layers.shared_layers import RowLinear
from graphpipe.model.shards.team import Entrance, ShardTeam, add_up, enter


@final
class SharedAttention(nn.Module):
    """Some heads of attention: the same arguments and results as those of `nn.MultiheadAttention`.

    Args:
        attention: the whole.
        weights: rows of the weights of queries, keys and values, each (width of this rank, width of the model).
        biases: the same of their biases; empty if there are none.
        behind: the layer behind attention.
        entrance: of queries, keys and values.
    """

    def __init__(
        self,
        attention: nn.MultiheadAttention,
        weights: Sequence[nn.Parameter],
        biases: Sequence[nn.Parameter],
        behind: RowLinear,
        entrance: Entrance,
    ) -> None:
        super().__init__()
        self.query_weight, self.key_weight, self.value_weight = weights
        self.query_bias, self.key_bias, self.value_bias = biases or (None, None, None)
        self.out_proj, self.entrance = behind, entrance
        self.num_heads = attention.num_heads // entrance.team.size
        self.all_heads, self.head_dim, self.embed_dim = attention.num_heads, attention.head_dim, attention.embed_dim
        self.dropout, self.batch_first = attention.dropout, attention.batch_first
        # What torch's own layers ask before they call a kernel of their own in evaluation: there is none for this.
        self.in_proj_bias = self.in_proj_weight = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result, and the weights of all heads in the mean if they are asked for."""
        if query.ndim == 2 or (need_weights and not average_attn_weights):
            raise InvalidInput(
                "is called without samples, or returns the weights of each head",
                where="attention that ranks share",
                remedy="Call it with samples and need_weights=False, or leave it whole by hand (style 'copied').",
            )
        queries, keys, values = self._heads(query, key, value)
        mask = self._mask(attn_mask, key_padding_mask, queries)
        if self.dropout and self.training:
            self.entrance.team.enter_region()
        if need_weights:
            scores = queries @ keys.transpose(-1, -2) / self.head_dim**0.5
            weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = functional.dropout(weights, self.dropout, self.training)
            mixed, mean = weights @ values, add_up(weights.sum(1) / self.all_heads, self.entrance.team)
        else:
            dropout = self.dropout if self.training else 0.0
            causal = is_causal and mask is None
            mixed = functional.scaled_dot_product_attention(queries, keys, values, mask, dropout, is_causal=causal)
            mean = None
        result = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        return result if self.batch_first else result.transpose(0, 1), mean

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        # (samples, heads of this rank, length, width of a head)
        given = ((query, self.query_weight, self.query_bias), (key, self.key_weight, self.key_bias))
        found: list[Tensor] = []
        for values, weight, bias in (*given, (value, self.value_weight, self.value_bias)):
            made = functional.linear(self.entrance.enter(values), weight, bias)
            made = made if self.batch_first else made.transpose(0, 1)
            found.append(made.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2))
        self.entrance.forget()  # queries and keys may be different values
        return found

    def _mask(self, mask: Tensor | None, padding: Tensor | None, queries: Tensor) -> Tensor | None:
        # (samples or 1, heads of this rank or 1, length, length), to be added to scores
        total = None
        if mask is not None:
            total = _added(mask, queries.dtype)
            if total.ndim == 3:
                every = total.unflatten(0, (-1, self.all_heads))
                total = every.narrow(1, self.entrance.team.position * self.num_heads, self.num_heads)
        if padding is not None:
            hidden = _added(padding, queries.dtype)[:, None, None, :]
            total = hidden if total is None else total + hidden
        return total


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


@final
class SharedBiasAttention(nn.Module):
    """Attention of T5, of which each rank computes some heads. The bias of positions is whole where it goes in and out,
    because other layers add it too.

    Args:
        attention: with layers that are shared already.
        heads: of all ranks.
        team: the ranks.
    """

    def __init__(self, attention: nn.Module, heads: int, team: ShardTeam) -> None:
        super().__init__()
        self.inner, self.heads, self.team = attention, heads, team

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> tuple[Any, ...]:
        """Return the result, the whole bias, and what else the attention returns."""
        if position_bias is None:
            position_bias = self._bias(hidden_states, hidden_states if key_value_states is None else key_value_states)
        own = self.heads // self.team.size
        entered = enter(position_bias, self.team)
        part = entered.narrow(1, self.team.position * own, own)
        result, _, *rest = self.inner(
            hidden_states, mask=mask, key_value_states=key_value_states, position_bias=part, **others
        )
        return result, position_bias, *rest

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        inner: Any = self.inner
        lengths = queries.shape[1], keys.shape[1]
        if inner.has_relative_attention_bias:
            return inner.compute_bias(*lengths, device=queries.device)
        return queries.new_zeros(1, self.heads, *lengths)
