"""Samples as a whole and in two parts, what a stage computes of them, and how far both are apart."""

import copy
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.run.stage.losses.check_mean import sum_and_weight
from graphpipe.run.stage.losses.undisturbed import as_before
from graphpipe.run.stage.losses.weighted_loss import WeightedLoss
from graphpipe.run.stage.tensor_tree import leaves, map_tensors

STAYS = 0.1
"""In double precision, a difference that is no rounding is still this share of what it was."""
_EXACT = 1e-4
"""Relative to the largest element. Products of matrices with other numbers of rows are rounded otherwise."""
_ROUNDED = 8.0
"""The same for 16 bits, in units of their last place."""
_ROUNDING = 1e-6
"""Of a sum of losses, for each sample, where they cancel."""
_ENOUGH = 4
"""Samples whose halves have two of them each."""
_SMALLER = 0.25
"""What samples are multiplied by to make other ones."""

Loss = Callable[[Any, Any], Any]
NamedTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Samples:
    """Some samples, as a stage gets them."""

    values: Mapping[str, Tensor]
    """What the stage reads of them."""
    targets: Any
    rows: int
    """Their number."""
    others: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Values of as many other samples, where they are known."""
    first: bool = False
    """Whether they are the first of the mini-batch, whose gradients are compared too."""

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Samples":
        """Return the samples with their tensors changed."""
        values = {name: change(value) for name, value in self.values.items()}
        return Samples(values, map_tensors(self.targets, change), self.rows)

    def head(self, rows: int) -> "Samples":
        """Return the first of them."""
        cut = partial(_cut, rows=self.rows, first=0, end=rows)
        return Samples({name: cut(each) for name, each in self.values.items()}, map_tensors(self.targets, cut), rows)


@dataclass(frozen=True, slots=True)
class Parts:
    """Samples as a whole and in two parts."""

    whole: Samples
    halves: tuple[Samples, Samples]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.whole.values.values())).device

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Parts":
        """Return them with their tensors changed."""
        one, other = self.halves
        return Parts(self.whole.changed(change), (one.changed(change), other.changed(change)))


@dataclass(frozen=True, slots=True)
class Found:
    """What a stage computes of some samples."""

    sent: NamedTensors
    """The values that it sends on, by name."""
    outputs: list[Tensor]
    """The tensors of the model's output, if it returns that."""
    result: Any
    """The model's output."""

    def loss(self, loss_fn: Loss, part: Samples) -> tuple[float, float]:
        """Return the sum of the losses of the samples, and their weight. The function keeps nothing."""
        weighs = isinstance(loss_fn, WeightedLoss)
        holder = loss_fn.function if weighs else loss_fn
        if isinstance(holder, nn.Module):
            holder = copy.deepcopy(holder)
        own = WeightedLoss(holder, loss_fn.weight) if weighs else holder
        return sum_and_weight(own, self.result, part.targets, part.rows)


def divisions(samples: Samples) -> Generator[Parts]:
    """Yield samples as a whole and in two parts, first in parts that have several samples, if that can be.

    Of two samples the lower is the median, as each is of itself. So few samples are put beside others like them.
    """
    ways = [_in_two(_twice(samples))]
    if samples.rows == 1:
        ways = [_in_two(_twice(_twice(samples))), *ways]
    elif samples.rows < _ENOUGH:
        ways = [*ways, _in_two(samples)]
    else:
        ways = [_in_two(samples), *ways]
    yield from ways


def _twice(samples: Samples) -> Samples:
    # The samples and as many others, or changed ones where others are not known.
    rows = samples.rows
    others = {name: samples.others.get(name, _another(value)) for name, value in samples.values.items()}
    both = {name: torch.cat([value, others[name]]) for name, value in samples.values.items()}
    again = map_tensors(
        samples.targets, lambda each: torch.cat([each, each]) if each.dim() and len(each) == rows else each
    )
    return Samples(both, again, 2 * rows)


def computed(program: ModuleStage, part: Samples, call: Callable[..., Any] | None = None) -> Found:
    """Return what a stage computes of some samples; what it changes is undone.

    Args:
        program: of the stage.
        part: the samples.
        call: in place of the program's module.
    """
    values = {name: value.detach().clone() for name, value in part.values.items()}  # a forward may write into them
    with as_before(program.module):
        sent, result = results(program, values, call)
        outputs = leaves(result) if program.is_output else []
        return Found({name: value.clone() for name, value in sent.items()}, outputs, result)


def results(
    program: ModuleStage, values: Mapping[str, Tensor], call: Callable[..., Any] | None
) -> tuple[NamedTensors, Any]:
    """Return what a stage sends on, and the model's output, as a call of the program."""
    if call is None:
        return program(values)
    found, output = call(*[values[name] for name in program.arguments])
    return dict(zip(program.sent, found, strict=True)), program.output(output)


def away(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors, or how many elements differ if they are not floating-point."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float(torch.count_nonzero(one != other))
    if (largest := left_over(one - other)) < math.inf:
        return largest
    same = (one == other) | ((one != one) & (other != other))
    return torch.where(same, 0, (one - other).abs()).nan_to_num(nan=math.inf, posinf=math.inf).max().item()


def tolerance(value: Tensor, share: float = _EXACT) -> float:
    """Return how large a difference of a tensor may be rounding: a share of its largest element."""
    if not value.is_floating_point() or not value.numel():
        return 0.0
    size = value.abs()
    scale = size.max().item()
    if not math.isfinite(scale):
        scale = torch.where(size.isfinite(), size, 0).max().item()
    return scale * max(share, _ROUNDED * torch.finfo(value.dtype).eps if is_low(value) else 0.0)


def left_over(value: Tensor) -> float:
    """Return the largest element of what is left of a tensor, or infinity if one is not a number: `away` from zero."""
    largest = value.abs().max().item() if value.numel() else 0.0
    return largest if math.isfinite(largest) else math.inf


def is_rounding(one: Tensor, other: Tensor) -> bool:
    """Return whether the difference of two tensors may be rounding."""
    size = away(one, other)
    return not size or size <= tolerance(one)


def follows(whole: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], rows: int) -> bool:
    """Return whether tensors are the rows of those of parts, or the same for all parts.

    Args:
        whole: the tensors of all samples.
        parts: the same of some of them, in order.
        rows: the number of samples.
    """
    return all(_follows(each, [part[n] for part in parts], rows) for n, each in enumerate(whole))


def is_near(one: float, other: float, rows: int) -> bool:
    """Return whether two sums of losses are equal but for rounding."""
    return abs(one - other) <= max(_EXACT * max(abs(one), abs(other)), _ROUNDING * rows) or one != one


def is_low(value: Tensor) -> bool:
    """Return whether a tensor has 16 bits."""
    return value.dtype in (torch.float16, torch.bfloat16)


def _in_two(samples: Samples) -> Parts:
    rows, half = samples.rows, samples.rows // 2
    whole, one, other = (
        Samples(
            {name: value[first:end] for name, value in samples.values.items()},
            map_tensors(samples.targets, partial(_cut, rows=rows, first=first, end=end)),
            end - first,
        )
        for first, end in ((0, rows), (0, half), (half, rows))
    )
    return Parts(whole, (one, other))


def _cut(tensor: Tensor, *, rows: int, first: int, end: int) -> Tensor:
    return tensor[first:end] if tensor.dim() and len(tensor) == rows else tensor


def _another(samples: Tensor) -> Tensor:
    if samples.is_floating_point() or samples.is_complex():
        return _SMALLER * samples
    return samples.roll(1, dims=-1) if samples.dim() > 1 else samples.flip(0)


def _follows(whole: Tensor, parts: Sequence[Tensor], rows: int) -> bool:
    if not whole.dim() or len(whole) != rows:
        return all(whole.shape == each.shape and is_rounding(whole, each) for each in parts)
    joined = len({each.shape[1:] for each in (whole, *parts)}) == 1
    return joined and is_rounding(whole, torch.cat([*parts]))
