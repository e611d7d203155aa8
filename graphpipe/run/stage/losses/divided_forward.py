"""Whether a stage that may mix samples computes the same for some of them alone as among others.

A capture names forwards that mix the samples of a batch, by their shapes. Some of these are exact over micro-batches
all the same: a model that returns its mean loss, a router that counts words for each expert, a statistic that only a
buffer keeps. Values tell them apart. So such a stage computes a micro-batch of the first step whole and in two parts:

    a value that is sent on       the rows of the whole must be those of the parts, or no gradient may reach it
    the loss                      the mean over the whole must follow from those of the parts

Nothing here needs to know why a stage mixes samples. It is limited to stages that a capture names, because the user's
forwards run more often than otherwise.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.kept_attributes import attributes_kept
from graphpipe.model.split.mode_dropout import ModeDropout
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.torch_private import own_buffers
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.stage.losses.check_mean import REMEDY, sum_and_weight
from graphpipe.run.stage.losses.weighted_loss import WeightedLoss, once
from graphpipe.run.stage.tensor_tree import leaves, map_tensors

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_EXACT = 1e-4
"""Relative to the largest element. Products of matrices with other numbers of rows are rounded otherwise."""
_ROUNDING = 1e-6
"""Of a sum of losses, for each sample, where they cancel."""
_SMALLER = 0.25
"""What a single sample is multiplied by to make another one."""

Loss = Callable[[Any, Any], Any]
NamedTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Part:
    values: NamedTensors
    targets: Any
    rows: int


@dataclass(frozen=True, slots=True)
class _Found:
    sent: NamedTensors
    outputs: list[Tensor]
    """The tensors of the model's output."""
    loss: tuple[float, float] | None
    """The sum over samples, and their weight."""


def mixing_of(program: StageProgram) -> tuple[str, str] | None:
    """Return what a program's forward mixes, and the remedy; None if it is not known to mix samples."""
    return program.mixes if isinstance(program, ModuleStage) else None


def check_divided(
    program: StageProgram,
    values: Mapping[str, Tensor],
    loss_fn: Loss | None,
    targets: Any,
    rows: int,
    mixing: tuple[str, str],
) -> list[str]:
    """Return the values that are sent on, and that are others for some samples alone than among others.

    Nothing is kept: buffers, attributes and random numbers are as before.

    Args:
        program: of a stage.
        values: that it reads, for the samples of a micro-batch.
        loss_fn: if it computes the loss.
        targets: of these samples.
        rows: their number.
        mixing: what is wrong if it does (see `mixing_of`).

    Raises:
        InvalidInput: the loss of the samples does not follow from those of some of them.
    """
    device = next(iter(values.values())).device
    with torch.no_grad(), preserve_rng_state(device):
        try:
            whole, parts = _parts(values, targets, rows)
            again, both = _run(program, whole, loss_fn), _run(program, whole, loss_fn)
            apart = [_run(program, each, loss_fn) for each in parts]
            joined = {name: torch.cat([each.sent[name] for each in apart]) for name in both.sent}
        except Exception:  # it may not take another number of samples
            return []
    if both.loss and again.loss and _is_near(both.loss[0], again.loss[0], whole.rows):  # it draws no random numbers
        total, weight = (sum(each) for each in zip(*(each.loss for each in apart if each.loss), strict=True))
        weighs = not (isinstance(loss_fn, WeightedLoss) and loss_fn.weight is once)
        off = not _is_near(both.loss[0], total, whole.rows)
        if off or (weighs and not _is_near(both.loss[1], weight, whole.rows)):
            if all(map(_follows, both.outputs, zip(*(each.outputs for each in apart), strict=True))):
                follows = "what follows from the losses of its parts, so micro-batches would train another loss"
                what = f"the loss of {whole.rows} samples is not {follows}"
                raise InvalidInput(what, where="loss_fn", remedy=REMEDY)
            raise refused(mixing, "the loss depends on it")
    return [
        name for name, value in both.sent.items() if _alike(value, again.sent[name]) and not _alike(value, joined[name])
    ]


def refused(mixing: tuple[str, str], why: str) -> InvalidInput:
    """Return the error for a stage that mixes samples of a part of the mini-batch."""
    what, remedy = mixing
    return InvalidInput(f"{what}, and {why}", where="step", remedy=remedy)


def without_gradients(values: NamedTensors, names: Iterable[str], mixing: tuple[str, str]) -> NamedTensors:
    """Return values of which some raise an error if a gradient reaches them: the loss depends on mixed samples."""
    mixed = {*names}
    return {
        name: _refusing(value, mixing) if name in mixed and value.requires_grad else value
        for name, value in values.items()
    }


def _refusing(value: Tensor, mixing: tuple[str, str]) -> Tensor:
    def refuse(gradient: Tensor) -> None:
        if torch.count_nonzero(gradient):
            raise refused(mixing, "the loss depends on it")

    value = value.view_as(value)  # others may read it, too
    value.register_hook(refuse)
    return value


def _parts(values: Mapping[str, Tensor], targets: Any, rows: int) -> tuple[_Part, list[_Part]]:
    # A micro-batch and its halves. A single sample gets another one beside it.
    if rows == 1:
        other = {name: _another(value) for name, value in values.items()}
        values = {name: torch.cat([value, other[name]]) for name, value in values.items()}
        targets, rows = map_tensors(targets, lambda each: torch.cat([each, each]) if each.dim() else each), 2
    half = rows // 2
    ranges = [(0, rows), (0, half), (half, rows)]
    whole, *parts = (
        _Part(
            {name: value[first:end] for name, value in values.items()},
            map_tensors(targets, partial(_cut, rows=rows, first=first, end=end)),
            end - first,
        )
        for first, end in ranges
    )
    return whole, parts


def _cut(tensor: Tensor, *, rows: int, first: int, end: int) -> Tensor:
    return tensor[first:end] if tensor.dim() and len(tensor) == rows else tensor


def _another(sample: Tensor) -> Tensor:
    if sample.is_floating_point() or sample.is_complex():
        return _SMALLER * sample
    return sample.roll(1, dims=-1) if sample.dim() > 1 else sample


def _run(program: StageProgram, part: _Part, loss_fn: Loss | None) -> _Found:
    values = {name: value.detach().clone() for name, value in part.values.items()}  # a forward may write into them
    with _as_before(program.module):
        sent, result = program(values)
        loss = None if loss_fn is None else sum_and_weight(loss_fn, result, part.targets, part.rows)
        outputs = leaves(result) if program.is_output else []
        return _Found({name: value.clone() for name, value in sent.items()}, outputs, loss)


@contextmanager
def _as_before(module: nn.Module) -> Generator[None]:
    # Let forwards change copies of buffers, and undo what they do to attributes. Dropout is off, and norms use the
    # statistics that they hold.
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    off = [part for part in parts if isinstance(part, (*_DROPOUTS, *_NORMS)) and part.training]
    drops = [(part, part.probability) for part in parts if isinstance(part, ModeDropout)]
    copies = {id(buffer): buffer.clone() for buffer in module.buffers()}
    with attributes_kept(module):
        for buffers in map(own_buffers, parts):
            buffers.update({name: copies[id(each)] for name, each in buffers.items() if each is not None})
        for part in off:
            part.training = False
        for part, _ in drops:
            part.probability = 0.0
        try:
            yield
        finally:
            for part in off:
                part.training = True
            for part, probability in drops:
                part.probability = probability


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype not in (torch.float32, torch.float64):
        return True  # it gets no gradient, or is rounded too much to compare
    scale = one.abs().max().item() if one.numel() else 0.0
    away = (one - other).abs().max().item() if one.numel() else 0.0
    return away <= _EXACT * scale or scale != scale


def _follows(whole: Tensor, parts: Sequence[Tensor]) -> bool:
    if not whole.dim():
        return all(_alike(whole, each) for each in parts)
    return len({each.shape[1:] for each in (whole, *parts)}) == 1 and _alike(whole, torch.cat([*parts]))


def _is_near(one: float, other: float, rows: int) -> bool:
    return abs(one - other) <= max(_EXACT * max(abs(one), abs(other)), _ROUNDING * rows) or one != one
