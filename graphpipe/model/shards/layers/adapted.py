"""Linear layers beside low-rank adapters: y = W x + b + s B A x (LoRA, Hu et al. 2021).

x --> W, b ------> + --> y        by columns: W, b and B       by rows: W and A
  \\-> A --> B * s -^              copied:     A                copied:  B, and b is added once
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

_MOST = 16
"""A module with more parameters is no linear layer with a few adapters."""
_TRANSPOSED = "Conv1D"
Kind = tuple[Literal["up", "down"], int]
"""Whether a parameter is of B or of A, and its dimension of outputs or inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The parameters of such a layer, by their names in it."""

    base: str
    """The path of the linear layer; empty: the module is a linear layer itself."""
    inputs: int
    outputs: int
    weight: str
    """W."""
    bias: str | None
    """b; None if there is none."""
    columns: Mapping[str, int]
    """What is divided by the outputs, with the dimension: W, b and B."""
    rows: Mapping[str, int]
    """What is divided by the inputs, with the dimension: W and A."""

    @property
    def has_biases(self) -> bool:
        """Whether an adapter has a bias, so that results of rows cannot be summed."""
        return len(self.columns) > len(self.rows) + (self.bias is not None)

    def divided(self, style: str) -> Mapping[str, int]:
        """Return what is divided with a style, with the dimension."""
        return self.rows if style == "row" else self.columns


def is_plain_linear(part: object) -> bool:
    """Return whether a submodule is a linear layer of a known kind, without adapters or hooks on its weights."""
    return type(part) in (nn.Linear, NonDynamicallyQuantizableLinear) or is_transposed(part)


def is_transposed(part: object) -> bool:
    """Return whether it is the linear layer of `transformers` that has its weight as (inputs, outputs)."""
    kind = type(part)
    return kind.__name__ == _TRANSPOSED and kind.__module__ == "transformers.pytorch_utils"


def adapted_of(module: object) -> Adapted | None:
    """Return what is in a linear layer with adapters; None if the parameters of a module are others.

    Adapters are pairs of linear layers or of matrices. Of two square matrices, the first is A. What the forward does
    with them is not looked at: `adapter_trial` does that.
    """
    if not isinstance(module, nn.Module) or is_plain_linear(module):
        return None
    held = dict(islice(module.named_parameters(remove_duplicate=False), _MOST + 1))
    if not 2 < len(held) <= _MOST:
        return None
    linears = {name: part for name, part in module.named_modules() if is_plain_linear(part)}
    base = _base(module, linears)
    if base is None:
        return None
    layer: Any = module.get_submodule(base)
    outside, inside = (1, 0) if is_transposed(layer) else (0, 1)
    outputs, inputs = (int(layer.weight.shape[at]) for at in (outside, inside))
    weight, bias = _inside(base, "weight"), _inside(base, "bias") if layer.bias is not None else None
    columns, rows = {weight: outside, **({bias: 0} if bias else {})}, {weight: inside}
    for name, parameter in held.items():
        if name in (weight, bias):
            continue
        path, _, own = name.rpartition(".")
        if path in linears and path != base:
            kind = _of_layer(linears[path], own, inputs, outputs)
        else:
            kind = _of_matrix(parameter, inputs, outputs, first=len(rows) == _matrices(columns, held))
        if kind is None:
            return None
        side, dimension = kind
        (columns if side == "up" else rows)[name] = dimension
    if len(rows) < 2 or len(rows) != _matrices(columns, held):
        return None
    return Adapted(base=base, inputs=inputs, outputs=outputs, weight=weight, bias=bias, columns=columns, rows=rows)


def _base(module: nn.Module, linears: Mapping[str, Any]) -> str | None:
    if isinstance(module, nn.Linear):
        return "" if "weight" in dict(module.named_parameters(recurse=False)) else None
    sizes = sorted(((part.weight.numel(), name) for name, part in linears.items()), reverse=True)
    return sizes[0][1] if sizes and (len(sizes) == 1 or sizes[0][0] > sizes[1][0]) else None


def _of_layer(layer: Any, own: str, inputs: int, outputs: int) -> Kind | None:
    outside, inside = (1, 0) if is_transposed(layer) else (0, 1)
    rises, falls = int(layer.weight.shape[outside]) == outputs, int(layer.weight.shape[inside]) == inputs
    if rises == falls or (falls and own == "bias"):
        return None
    if own == "bias":
        return "up", 0
    return ("up", outside) if rises else ("down", inside)


def _of_matrix(parameter: Tensor, inputs: int, outputs: int, *, first: bool) -> Kind | None:
    falls = [at for at, size in enumerate(parameter.shape) if size == inputs]
    rises = [at for at, size in enumerate(parameter.shape) if size == outputs]
    if parameter.ndim != 2 or not 0 < len(falls) + len(rises) <= (2 if inputs == outputs else 1) or len(falls) > 1:
        return None
    if falls and (first or not rises):
        return "down", falls[0]
    return ("up", rises[0]) if rises else None


def _matrices(names: Mapping[str, int], held: Mapping[str, Tensor]) -> int:
    return sum(held[name].ndim > 1 for name in names)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
