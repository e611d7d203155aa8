"""The profiler: times the real code of every operator on this machine, and fits curves to the times."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import Tensor

from graphpipe.costs.fit import fit_curve, relative_error
from graphpipe.costs.table import Curve, OpCost
from graphpipe.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """The real code of one operator, with real inputs."""

    op: str
    call: Callable[[dict[str, Tensor]], Sequence[Tensor]]
    """Takes the inputs by name, for any number of samples, and returns every tensor the operator puts out."""
    inputs: Mapping[str, Tensor]
    """At least as many samples as the largest batch that is measured."""
    differentiable: frozenset[str] = frozenset()
    """Inputs that need a gradient in training."""
    parameters: tuple[Tensor, ...] = ()
    """Those that need a gradient; it accumulates in them."""
    twin: Hashable
    """Operators with equal twins are the same code on the same shapes: one of them is measured."""
    ends: bool = False
    """Whether what it puts out is the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: at least `repeats` times, and on until `seconds` have passed, but `most` times at most."""

    repeats: int = 5
    most: int = 50
    seconds: float = 0.03
    clock: Callable[[], float] = field(default=time.perf_counter)
    between: Callable[[], object] = field(default=lambda: None)
    """Called before everything that is timed, to leave the caches as other work leaves them: in training no operator
    runs twice in a row."""

    def sample(self, action: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """Return the median of each of the figures that `action` returns, after one call to warm up."""
        action()
        start = self.clock()
        figures: list[Sequence[float]] = []
        while len(figures) < self.repeats or (len(figures) < self.most and self.clock() - start < self.seconds):
            figures.append(action())
        return tuple(median(column) for column in zip(*figures, strict=True))

    def now(self) -> float:
        """Return the time, once the accelerator (if any) has done all it was given."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.clock()


def profile_ops(
    runs: Iterable[OpRun], device_type: str, batch_sizes: Sequence[int], effort: Effort | None = None
) -> tuple[OpCost, ...]:
    """Return a measured row of the cost table for every run, in order.

    The forward and the whole backward are fitted; the backward is then divided between input and weight gradient as
    the input gradient alone, measured too, is to the whole. `OpCost.error` is the worse of the two fits.

    Args:
        runs: consumed one at a time, so that the inputs of one operator only need be alive at once.
        device_type: the name the rows carry.
        batch_sizes: numbers of samples to measure at; those that an operator refuses (batch normalisation of one
            sample) are left out for it.
        effort: how long to measure each.

    Raises:
        InvalidInput: an operator refuses every batch size (its first reason is given).
    """
    known: dict[Hashable, OpCost] = {}
    rows: list[OpCost] = []
    for run in runs:
        if run.twin not in known:
            known[run.twin] = _profile(run, device_type, batch_sizes, effort or Effort())
        rows.append(replace(known[run.twin], op=run.op))
    return tuple(rows)


def _profile(run: OpRun, device_type: str, batch_sizes: Sequence[int], effort: Effort) -> OpCost:
    figures = _measure(run, batch_sizes, effort)
    forward = {samples: figure[0] for samples, figure in figures.items()}
    backward = {samples: figure[1] for samples, figure in figures.items()}
    forward_curve, backward_curve = fit_curve(forward), fit_curve(backward)
    whole = sum(backward.values())
    share = _input_share(run, sum(figure[2] for figure in figures.values()) / whole if whole else 0.0)
    return OpCost(
        op=run.op,
        device_type=device_type,
        forward=forward_curve,
        input_gradient=_scale(backward_curve, share),
        weight_gradient=_scale(backward_curve, 1.0 - share),
        source="profiled",
        error=max(relative_error(forward_curve, forward), relative_error(backward_curve, backward)),
    )


def _measure(run: OpRun, batch_sizes: Sequence[int], effort: Effort) -> dict[int, tuple[float, ...]]:
    figures: dict[int, tuple[float, ...]] = {}
    refusals: list[str] = []
    for samples in batch_sizes:
        try:
            figures[samples] = effort.sample(lambda at=samples: _time_once(run, at, effort))
        except (RuntimeError, ValueError) as error:
            refusals.append(f"{samples} samples: {str(error).splitlines()[0]}")
    if not figures:
        raise InvalidInput(f"cannot be run on {refusals[0]}", where=f"operator '{run.op}'")
    return figures


def _time_once(run: OpRun, samples: int, effort: Effort) -> tuple[float, float, float]:
    """Return seconds of the forward, of the whole backward, and of the input gradient alone."""
    leaves, roots, forward = _time_forward(run, samples, effort)
    if not roots:
        return forward, 0.0, 0.0
    effort.between()
    gradients = [torch.ones_like(root) for root in roots]
    start = effort.now()
    torch.autograd.backward(roots, gradients)
    whole = effort.now() - start
    if not leaves:
        return forward, whole, 0.0
    # After a forward of its own, so that neither backward finds the caches warmed by the other.
    leaves, roots, _ = _time_forward(run, samples, effort)
    effort.between()
    gradients = [torch.ones_like(root) for root in roots]
    start = effort.now()
    torch.autograd.grad(roots, leaves, gradients, allow_unused=True)
    return forward, whole, effort.now() - start


def _time_forward(run: OpRun, samples: int, effort: Effort) -> tuple[list[Tensor], list[Tensor], float]:
    # Returns the inputs that need a gradient, the outputs that have one, and seconds.
    effort.between()
    leaves, entered = _enter(run, samples)  # the operator before has just made what comes in
    start = effort.now()
    outputs = run.call(entered)
    seconds = effort.now() - start
    return leaves, [output for output in outputs if output.requires_grad], seconds


def _enter(run: OpRun, samples: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    # The operator may work in place, which neither the kept inputs nor a leaf allows: it gets copies.
    rows = {name: tensor[:samples].detach() for name, tensor in run.inputs.items()}
    leaves = [rows[name].requires_grad_() for name in sorted(run.differentiable)]
    return leaves, {name: tensor.clone() for name, tensor in rows.items()}


def _input_share(run: OpRun, measured: float) -> float:
    if not run.parameters:
        return 1.0
    return min(1.0, measured) if run.differentiable else 0.0


def _scale(curve: Curve, factor: float) -> Curve:
    return Curve(lines=tuple((fixed * factor, slope * factor) for fixed, slope in curve.lines)) if factor else Curve()
