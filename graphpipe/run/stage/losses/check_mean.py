"""Checks that a loss is a mean over samples: that of several samples follows from those of some of them."""

import copy
import math
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.stage.losses.weighted_loss import WeightedLoss
from graphpipe.run.stage.tensor_tree import leaves, map_tensors

_TOLERANCE = 1e-5
"""Relative. A loss may compute in single precision."""
_SMALLER = 0.25
"""The first samples' outputs are also made smaller by this factor, so that samples differ."""
_MOST = 2
"""Samples of a part. More would take memory."""
REMEDY = (
    "Return a pair, the sum and its weight (for example the number of labels), or give gp.WeightedLoss(loss_fn, "
    "weight=...). A loss that needs all samples at once needs an output stage with the whole mini-batch (whole_batch)."
)


_Given = tuple[Any, Any, int]
"""Outputs and targets of samples, and their number."""
Loss = Callable[[Any, Any], Any]


def check_mean(loss_fn: Callable[[Any, Any], Any], output: Any, targets: Any, *, first: bool) -> None:
    """Check a loss on some samples of a micro-batch.

    Args:
        loss_fn: of the pipeline.
        output: of the model, for the samples of a micro-batch.
        targets: of these samples.
        first: whether this is the first step. Later, what is found is a warning.

    Raises:
        InvalidInput: in the first step, it is no mean over samples.
    """
    rows = min((len(each) for each in leaves(targets) if each.dim()), default=_rows(output))
    part = min(rows // 2, _MOST)
    if not part:
        return
    holder = loss_fn.function if isinstance(loss_fn, WeightedLoss) else loss_fn
    if isinstance(holder, nn.Module):  # it may keep something
        own = copy.deepcopy(holder)
        loss_fn = WeightedLoss(own, loss_fn.weight) if isinstance(loss_fn, WeightedLoss) else own
    found = _away(loss_fn, _halves(output, targets, rows, part))
    if found is None or found.away <= _TOLERANCE:
        # Two samples may be alike. Where the loss takes no parts of them, it may need as many as a micro-batch has.
        found = _away(loss_fn, _doubled(output, targets, rows, rows if found is None else part))
    if found is None or found.away <= _TOLERANCE:
        return
    with torch.no_grad(), preserve_rng_state(leaves(output)[0].device):
        has_weights = _has_weights(loss_fn, found.both)
    share = "what its weights say" if has_weights else "the mean of the losses of its parts"
    what = f"the loss of {found.both[2]} samples is not {share}, so micro-batches would train another loss"
    if first:
        raise InvalidInput(what, where="loss_fn", remedy=REMEDY)
    warnings.warn(f"loss_fn: {what}. {REMEDY}", stacklevel=2)


@dataclass(frozen=True, slots=True)
class _Found:
    away: float
    """The relative difference of the loss of samples from what follows from its parts; 0 for a random loss."""
    both: _Given
    """The samples."""


def _away(loss_fn: Loss, divided: Iterable[tuple[tuple[_Given, _Given], _Given]]) -> _Found | None:
    # The first difference; None if the loss takes none of these numbers of samples, or is not finite for them.
    known: _Found | None = None
    for halves, both in divided:
        with torch.no_grad(), preserve_rng_state(leaves(both[0])[0].device):
            try:
                found = [sum_and_weight(loss_fn, *each) for each in (*halves, both, both)]
            except Exception:  # a loss that takes no other number of samples
                continue
        (one, of_one), (other, of_other), (total, of_total), again = found
        away = max(
            abs(one + other - total) / max(abs(one) + abs(other), abs(total), 1e-30), abs(of_one + of_other - of_total)
        )
        if away != away:  # not finite
            if not math.isfinite(total) or again != (total, of_total):
                continue
            away = math.inf  # a mean over samples is not finite either if that of a part is not
        known = _Found(away if again == (total, of_total) else 0.0, both)
        if known.away > _TOLERANCE:
            return known
    return known


def _halves(output: Any, targets: Any, rows: int, part: int) -> Generator[tuple[tuple[_Given, _Given], _Given]]:
    # Some samples in two parts and as a whole: as they are, and with the first part made smaller.
    for factor in (1.0, _SMALLER):
        one, other = (_part(output, targets, rows, start, part, factor) for start in (0, part))
        yield (one, other), _part(output, targets, rows, 0, 2 * part, factor, scaled=part)


def _doubled(output: Any, targets: Any, rows: int, count: int) -> Generator[tuple[tuple[_Given, _Given], _Given]]:
    # The first samples, beside the same ones made smaller, so that each label is there twice. And beside the first one
    # alone, so that one label is there more often: classes may weigh by how many samples they have.
    count = min(rows, max(count, 2))
    given = _part(output, targets, rows, 0, count, 1.0)
    for several in (count, 1):
        small = _part(output, targets, rows, 0, several, _SMALLER, scaled=several)
        yield (small, given), (*joined(small[:2], given[:2]), several + count)


def no_mean(samples: int) -> InvalidInput:
    """Return the error for a loss of samples that does not follow from the losses of some of them."""
    what = f"the loss of {samples} samples is not what follows from the losses of its parts"
    return InvalidInput(f"{what}, so micro-batches would train another loss", where="loss_fn", remedy=REMEDY)


def joined(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return outputs and targets of the samples of two micro-batches; the second alone, if shapes differ."""
    first, second = leaves(one), leaves(other)
    if [each.shape[1:] for each in first] != [each.shape[1:] for each in second]:
        return other
    rest = iter([torch.cat(pair) if pair[0].dim() else pair[1] for pair in zip(first, second, strict=True)])
    return map_tensors(other, lambda _: next(rest))


def _rows(output: Any) -> int:
    return min((len(each) for each in leaves(output) if each.dim()), default=0)


def _part(output: Any, targets: Any, rows: int, start: int, count: int, factor: float, scaled: int = 0) -> _Given:
    # Outputs (in double precision) and targets of some samples, and their number. The first ones are made smaller.
    small = scaled or (count if not start else 0)

    def cut(tensor: Tensor) -> Tensor:
        return tensor[start : start + count] if tensor.dim() and len(tensor) == rows else tensor

    def change(tensor: Tensor) -> Tensor:
        found = cut(tensor.detach())
        if not found.is_floating_point():
            return found.clone()
        found = found.double()
        if found.dim() and len(found) == count:
            scale = torch.ones(count, dtype=found.dtype, device=found.device)
            scale[:small] = factor
            return found * scale.reshape(-1, *[1] * (found.dim() - 1))
        return found.clone()

    def exact(tensor: Tensor) -> Tensor:
        found = cut(tensor.detach())
        return found.double() if found.is_floating_point() else found.clone()

    return map_tensors(output, change), map_tensors(targets, exact), count


def _has_weights(loss_fn: Callable[[Any, Any], Any], part: tuple[Any, Any, int]) -> bool:
    return isinstance(loss_fn, WeightedLoss) or isinstance(loss_fn(*part[:2]), tuple)


def sum_and_weight(loss_fn: Callable[[Any, Any], Any], output: Any, targets: Any, count: int) -> tuple[float, float]:
    """Return the sum of the losses of some samples, and of their weights, both as the function says.

    Args:
        loss_fn: returns a mean, or a sum and its weight.
        output: of the model.
        targets: of the samples.
        count: of the samples.
    """
    if isinstance(loss_fn, WeightedLoss):
        weight = float(loss_fn.weight(targets))
        return (float(loss_fn(output, targets)) * weight if weight else 0.0), weight
    found = loss_fn(output, targets)
    if isinstance(found, tuple):
        total, weight = found  # pyright: ignore[reportUnknownVariableType]
        return float(total), float(weight)  # pyright: ignore[reportUnknownArgumentType]
    return float(found) * count, float(count)
