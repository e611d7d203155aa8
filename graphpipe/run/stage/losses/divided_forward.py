"""Whether a stage computes the same for some samples alone as among others.

A forward may mix the samples of a batch: a mean over them, a comparison with the first one, a division by their number.
Then micro-batches train something else. Some mixtures are exact all the same: a model that returns its mean loss, a
router that counts words for each expert, a statistic that only a buffer keeps. A capture names some of them by their
shapes, and others have no such shape. Values tell all of them apart. So each stage computes a micro-batch of the first
step whole and in two parts, or where it does not run on parts, twice as many samples and each half of them:

    a value that is sent on       the rows of the whole must be those of the parts, or no gradient may reach it
    the loss                      the mean over the whole must follow from those of the parts

What differs by more than rounding is computed again in double precision, where rounding becomes small and a mixture
does not. Nothing here needs to know why a stage mixes samples.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.graph import Mixing
from graphpipe.model.capture.batch_statistics import what_and_remedy
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.stage.losses.check_mean import no_mean
from graphpipe.run.stage.losses.divided_backward import check_divided_backward
from graphpipe.run.stage.losses.kept_between import warn_of_kept_values
from graphpipe.run.stage.losses.mixing_place import mixing_place
from graphpipe.run.stage.losses.parts_of_samples import (
    STAYS,
    Found,
    Loss,
    Parts,
    Samples,
    away,
    computed,
    divisions,
    follows,
    is_low,
    is_near,
    tolerance,
)
from graphpipe.run.stage.losses.undisturbed import doubled, in_double, undisturbed
from graphpipe.run.stage.losses.weighted_loss import WeightedLoss, once

NamedTensors = dict[str, Tensor]
_PLAIN = 1e-2
"""Relative: a difference that counts where a stage does not run in double precision."""
_UNKNOWN = what_and_remedy(Mixing(where="", operator=""))


_ONLY_NAMED: ContextVar[bool] = ContextVar("whether only stages are divided that a capture names", default=False)


@dataclass(frozen=True, slots=True)
class Mixed:
    """What a stage mixes."""

    names: tuple[str, ...]
    """The values that it sends on, and that are others for some samples alone."""
    mixing: tuple[str, str]
    """What is wrong, and the remedy."""


@dataclass(frozen=True, slots=True)
class _Differences:
    sent: Mapping[str, float]
    """How far apart values are, where it is more than rounding."""
    output: bool
    """Whether the model's output does not follow from that of the parts."""
    loss: bool
    """Whether the loss does not."""
    large: frozenset[str]
    """The values that differ by more than rounding ever makes."""


@contextmanager
def only_named() -> Generator[None]:
    """While inside, stages are divided only if a capture names how they mix samples: something else compares steps."""
    token = _ONLY_NAMED.set(True)
    try:
        yield
    finally:
        _ONLY_NAMED.reset(token)


def mixing_of(program: StageProgram) -> bool | None:
    """Return whether a capture names how a program mixes samples; None if it is not to be divided.

    It is not if it is no forward of the user's model, or inside `only_named`.
    """
    if not isinstance(program, ModuleStage) or (program.mixes is None and _ONLY_NAMED.get()):
        return None
    return program.mixes is not None


def check_divided(program: StageProgram, samples: Samples, loss_fn: Loss | None, stage: str) -> Mixed | None:
    """Return the values that are sent on, and that are others for some samples alone than among others; None: none are.

    Nothing is kept: buffers, attributes, gradients and random numbers are as before.

    Args:
        program: of a stage.
        samples: of a micro-batch.
        loss_fn: if it computes the loss.
        stage: its name.

    Raises:
        InvalidInput: the loss of the samples, or a gradient, does not follow from those of some of them.
    """
    assert isinstance(program, ModuleStage)
    low = any(is_low(each) for each in program.module.parameters())
    for parts in divisions(samples):
        first = _differences(program, parts, loss_fn, double=low)
        if first is not None:
            break
    else:  # it takes no other number of samples, or draws random numbers that are not torch's
        return None
    mixed = None
    if first.sent or first.loss:
        mixed = _confirmed(program, parts, loss_fn, first, low=low)
    if samples.first and not _ONLY_NAMED.get():
        warn_of_kept_values(program, samples, stage)
        few = [next(divisions(samples.head(2)))] if samples.rows > 2 else []  # gradients keep what forwards compute
        without = () if mixed is None else mixed.names
        check_divided_backward(program, [*few, parts], stage, without, outputs=program.is_output and not first.output)
    return mixed


def _confirmed(
    program: ModuleStage, parts: Parts, loss_fn: Loss | None, first: _Differences, *, low: bool
) -> Mixed | None:
    found = first if low else _differences(program, parts, loss_fn, double=True)
    names = first.large if found is None else frozenset(found.sent)
    kept = [
        name
        for name in names & first.sent.keys()
        if found is None or found.sent[name] >= STAYS * first.sent.get(name, 0.0)
    ]
    off = (found or first).loss
    if not (kept or off):
        return None
    mixing = program.mixes or mixing_place(program, parts) or _UNKNOWN
    if not off:
        return Mixed(tuple(sorted(kept)), mixing)
    if not (found or first).output:
        raise no_mean(parts.whole.rows)
    raise refused(mixing, "the loss depends on it")


def refused(mixing: tuple[str, str], why: str) -> InvalidInput:
    """Return the error for a stage that mixes samples of a part of the mini-batch."""
    what, remedy = mixing
    return InvalidInput(f"{what}, and {why}", where="step", remedy=remedy)


def without_gradients(values: NamedTensors, mixed: Mixed) -> NamedTensors:
    """Return values of which some raise an error if a gradient reaches them: the loss depends on mixed samples.

    Raises:
        InvalidInput: one of these gets no gradient at all, so that nothing would tell whether the loss depends on it.
    """
    if any(not values[name].requires_grad for name in mixed.names):
        raise refused(mixed.mixing, "other stages read it")
    return {name: _refusing(value, mixed.mixing) if name in mixed.names else value for name, value in values.items()}


def _refusing(value: Tensor, mixing: tuple[str, str]) -> Tensor:
    def refuse(gradient: Tensor) -> None:
        if torch.count_nonzero(gradient):
            raise refused(mixing, "the loss depends on it")

    value = value.view_as(value)  # others may read it, too
    value.register_hook(refuse)
    return value


def _differences(program: ModuleStage, parts: Parts, loss_fn: Loss | None, *, double: bool) -> _Differences | None:
    # None if the stage does not run, or does not compute the same twice. If a capture names a mixture, the loss is
    # compared in any case. Otherwise it is checked apart.
    named = program.mixes is not None
    if double:
        parts = parts.changed(doubled)
    with undisturbed(parts.device, double=double):
        try:
            call = in_double(program.module)[0] if double else None
            whole, apart = (
                computed(program, parts.whole, call),
                [computed(program, each, call) for each in parts.halves],
            )
            found = _compared(parts, whole, apart, loss_fn, named=named)
            if not (found.sent or found.loss):
                return found
            again = computed(program, parts.whole, call)
            same = _compared(parts, whole, [again], None, named=False)
        except Exception:  # it may not take another number of samples, or no double precision
            return None
    return None if same.sent or same.output else found


def _compared(parts: Parts, whole: Found, apart: Sequence[Found], loss_fn: Loss | None, *, named: bool) -> _Differences:
    sent = {name: torch.cat([each.sent[name] for each in apart]) for name in whole.sent}
    sizes = {name: size for name, value in whole.sent.items() if (size := away(value, sent[name]))}
    output = not follows(whole.outputs, [each.outputs for each in apart], parts.whole.rows)
    return _Differences(
        sent={name: size for name, size in sizes.items() if size > tolerance(whole.sent[name])},
        output=output,
        loss=loss_fn is not None and (output or named) and _loss_is_off(parts, whole, apart, loss_fn),
        large=frozenset(name for name, size in sizes.items() if size > tolerance(whole.sent[name], share=_PLAIN)),
    )


def _loss_is_off(parts: Parts, whole: Found, apart: Sequence[Found], loss_fn: Loss) -> bool:
    (total, of_total), (again, _) = whole.loss(loss_fn, parts.whole), whole.loss(loss_fn, parts.whole)
    if total != again:  # it draws random numbers that are not torch's
        return False
    found = [each.loss(loss_fn, part) for each, part in zip(apart, parts.halves, strict=True)]
    others, weight = (sum(each) for each in zip(*found, strict=True))
    weighs = not (isinstance(loss_fn, WeightedLoss) and loss_fn.weight is once)
    rows = parts.whole.rows
    return not is_near(total, others, rows) or (weighs and not is_near(of_total, weight, rows))
