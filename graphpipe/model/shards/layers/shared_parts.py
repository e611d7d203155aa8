"""The part of a convolution, or of a linear layer with adapters, that one of the ranks of a replica computes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from graphpipe.graph import ShardStyle
from graphpipe.model.shards.layers.adapted import Adapted, is_transposed
from graphpipe.model.shards.layers.rebuilt import called_with, without_parameters
from graphpipe.model.shards.layers.shared_layers import ColumnLinear, RowLinear
from graphpipe.model.shards.logits.divided_logits import logits
from graphpipe.model.shards.team import INSIDE, Border, Entrance, ShardTeam, enter_weight, join

PartsOf = Callable[[str, int], Sequence[nn.Parameter]]
Noted = Callable[[nn.Module, nn.Module], nn.Module]


@final
class LayerParts(nn.Module):
    """The forward of such a layer with the parameters of one rank.

    Args:
        inner: the layer without parameters. A linear layer in it may have its part in place.
        divided: parts of the other parameters with the dimension that is divided, by name: one part, or several that
            lie one behind the other.
        copied: the parameters that every rank has whole. Its rank sees a part of what they do, so gradients are summed.
        left_out: names of parameters that the layer is called without.
        team: the ranks.
    """

    def __init__(
        self,
        inner: nn.Module,
        divided: Mapping[str, tuple[Sequence[nn.Parameter], int]],
        copied: Mapping[str, nn.Parameter],
        left_out: Sequence[str],
        team: ShardTeam,
    ) -> None:
        super().__init__()
        self.inner, self.team = inner, team
        self.divided = nn.ParameterList([each for parts, _ in divided.values() for each in parts])
        self.copied = nn.ParameterList([*copied.values()])
        self._divided = {name: (len(parts), at) for name, (parts, at) in divided.items()}
        self._copied, self._left_out = tuple(copied), tuple(left_out)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the outputs of this rank, or its part of the sum."""
        parts, tensors = iter(self.divided), dict[str, Tensor | None].fromkeys(self._left_out)
        for name, (count, dimension) in self._divided.items():
            own = [next(parts) for _ in range(count)]
            tensors[name] = own[0] if count == 1 else torch.cat(own, dimension)
        for name, parameter in zip(self._copied, self.copied, strict=True):
            tensors[name] = enter_weight(parameter, self.team)
        return called_with(self.inner, tensors, *args, **kwargs)


def adapter_parts(
    module: nn.Module, adapted: Adapted, style: ShardStyle, parts_of: PartsOf, team: ShardTeam, noted: Noted
) -> LayerParts:
    """Return the forward of a linear layer with adapters on one rank, without the bias of rows.

    Args:
        module: of the user.
        adapted: what is in it.
        style: how ranks share it.
        parts_of: returns the parts of a parameter of the layer, by its name in it and the dimension that is divided.
        team: the ranks.
        noted: takes a module of the user and what stands for it, and returns the latter.
    """
    row, dimensions = style == "row", adapted.divided(style)
    weight, bias = adapted.weight, None if row else adapted.bias
    left_out = {adapted.bias} if row else set[str | None]()
    placed = dict[str, nn.Module]()
    if adapted.base:  # it keeps the parts of its weight apart, because putting them together would copy them
        turned = is_transposed(module.get_submodule(adapted.base))
        weights = parts_of(weight, dimensions[weight])
        inside = Entrance(team, INSIDE)
        biases = parts_of(bias, 0) if bias is not None else ()
        placed[adapted.base] = (
            RowLinear(weights[0], None, team, INSIDE, transposed=turned)
            if row
            else ColumnLinear(weights, biases, inside, transposed=turned)
        )
        left_out |= {weight, adapted.bias}
    held = {name: each for name, each in module.named_parameters() if name not in left_out}
    return LayerParts(
        _bare(module, placed, noted),
        {name: (parts_of(name, at), at) for name, at in dimensions.items() if name in held},
        {name: each for name, each in held.items() if name not in dimensions},
        [adapted.bias] if row and adapted.bias is not None and not adapted.base else [],
        team,
    )


def _bare(module: nn.Module, placed: Mapping[str, nn.Module], noted: Noted, prefix: str = "") -> nn.Module:
    children = dict[str, nn.Module]()
    for name, child in module.named_children():
        path = prefix + name
        if path in placed:
            children[name] = placed[path]
        elif any(True for _ in child.parameters()):
            children[name] = _bare(child, placed, noted, f"{path}.")
    return noted(module, without_parameters(module, children))


@final
class PartColumns(nn.Module):
    """Some outputs of the layer, from all inputs.

    Args:
        parts: of this rank.
        entrance: of the layer's input.
        joined: the outputs of all ranks, if the layer returns these; None: it returns its own.
        read_by_loss: whether they are logits, of which a cross-entropy reads the parts.
        drops: whether an adapter drops inputs, which must be the same on each rank.
        draws: whether a dropout follows, which must drop other values on each rank.
    """

    def __init__(
        self,
        parts: LayerParts,
        entrance: Entrance,
        *,
        joined: int | None = None,
        read_by_loss: bool = False,
        drops: bool = False,
        draws: bool = False,
    ) -> None:
        super().__init__()
        self.join = logits if read_by_loss else join
        self.parts, self.entrance, self.joined, self.drops, self.draws = parts, entrance, joined, drops, draws

    def forward(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return these outputs."""
        team = self.entrance.team
        entered = self.entrance.enter(values)
        if self.drops and self.draws and self.training:
            team.leave_region()
        found = self.parts(entered, *args, **kwargs)
        if self.draws and self.training:
            team.enter_region()
        return found if self.joined is None else self.join(found, team, self.joined)


@final
class PartRows(nn.Module):
    """A layer of whose inputs each rank has some: it returns all outputs.

    Args:
        parts: of this rank, without the bias.
        bias: the whole bias, which is added once; None adds none.
        team: the ranks.
        border: around the layers that end here.
        drops: whether an adapter drops inputs, which are others on each rank.
        behind: dimensions behind that of outputs, which a convolution has.
    """

    def __init__(
        self,
        parts: LayerParts,
        bias: nn.Parameter | None,
        team: ShardTeam,
        border: Border,
        *,
        drops: bool = False,
        behind: int = 0,
    ) -> None:
        super().__init__()
        self.parts, self.bias, self.team, self.border, self.drops = parts, bias, team, border, drops
        self.behind = (1,) * behind

    def forward(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the sum of the products of all ranks, with the bias."""
        alike = self.border.draws_alike
        if alike and self.drops and self.training:
            self.team.enter_region()
        part = self.parts(values, *args, **kwargs)
        if alike:
            self.team.leave_region()
        total = self.border.leave(part, self.team)
        return total if self.bias is None else total + self.bias.reshape(-1, *self.behind)
