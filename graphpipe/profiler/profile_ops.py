"""The profiler: times the real code of every operator on this machine, and fits curves to the times."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from graphpipe.costs.cost_table import Curve, OpCost
from graphpipe.errors import InvalidInput
from graphpipe.profiler.fit_curve import fit_curve, relative_error

WINDOW_BYTES = 64 * 2**20
"""More than caches hold."""


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
    """Operators with equal twins are the same code on the same shapes: what is measured of some holds for all."""
    kept_bytes_per_sample: float = 0.0
    """For its backward."""
    ends: bool = False
    """Whether what it puts out is the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: at least `repeats` times, and on until `seconds` an operator have passed, but `most` times
    at most."""

    repeats: int = 5
    most: int = 50
    seconds: float = 0.03
    clock: Callable[[], float] = field(default=time.perf_counter)
    between: Callable[[], object] = field(default=lambda: None)
    """Called before the forwards and before the backwards, to leave the caches as other work leaves them."""

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


class Times(NamedTuple):
    """Seconds of an operator at some number of samples."""

    forward: float
    backward: float
    """The whole of it."""
    input_gradient: float


class _Forward(NamedTuple):
    # Between an operator's forward and its backward: inputs that need a gradient, outputs that have one.
    leaves: list[Tensor]
    roots: list[Tensor]
    seconds: float


def profile_ops(
    runs: Iterable[OpRun], device_type: str, batch_sizes: Sequence[int], effort: Effort | None = None
) -> tuple[OpCost, ...]:
    """Return a measured row of the cost table for every run, in order.

    Operators are timed as training runs them: the forwards of several one after the other, then their backwards in
    reverse. An operator that runs again and again by itself finds its code, its branches and the memory it writes to
    in the caches, and takes down to half as long. `WINDOW_BYTES` of what is kept for the backward is as much as
    matters to a cache: longer models are measured in windows, and of operators that are twins those of one window.

    The forward and the whole backward are fitted; the backward is then divided between input and weight gradient as
    the input gradient alone, measured too, is to the whole. `OpCost.error` is the worse of the two fits.

    Args:
        runs: consumed one at a time, so that the inputs of one window only need be alive at once.
        device_type: the name the rows carry.
        batch_sizes: numbers of samples to measure at; those that an operator refuses (batch normalisation of one
            sample) are left out for it.
        effort: how long to measure each.

    Raises:
        InvalidInput: an operator refuses every batch size (its first reason is given).
    """
    effort = effort or Effort()
    known: dict[Hashable, OpCost] = {}
    order: list[tuple[str, Hashable]] = []
    window: list[OpRun] = []
    for run in runs:
        order.append((run.op, run.twin))
        if run.twin in known:
            continue
        window.append(run)
        if sum(each.kept_bytes_per_sample for each in window) * max(batch_sizes) >= WINDOW_BYTES:
            known |= _profile(window, device_type, batch_sizes, effort)
            window = []
    known |= _profile(window, device_type, batch_sizes, effort)
    return tuple(replace(known[twin], op=op) for op, twin in order)


def _profile(
    window: Sequence[OpRun], device_type: str, batch_sizes: Sequence[int], effort: Effort
) -> dict[Hashable, OpCost]:
    willing: dict[int, list[OpRun]] = {samples: [] for samples in batch_sizes}
    refusals: dict[Hashable, str] = {}
    for samples in batch_sizes:
        for run in window:
            try:
                one_pass([run], samples, effort)
            except (RuntimeError, ValueError) as error:
                refusals.setdefault(run.twin, f"{samples} samples: {str(error).splitlines()[0]}")
            else:
                willing[samples].append(run)
    for run in window:
        if not any(run.op == each.op for some in willing.values() for each in some):
            raise InvalidInput(f"cannot be run on {refusals[run.twin]}", where=f"operator '{run.op}'")
    measured = _measure(willing, effort)
    return {run.twin: _row(run, measured[run.twin], device_type) for run in window}


def _row(run: OpRun, measured: Mapping[int, Times], device_type: str) -> OpCost:
    forward = {samples: times.forward for samples, times in measured.items()}
    backward = {samples: times.backward for samples, times in measured.items()}
    forward_curve, backward_curve = fit_curve(forward), fit_curve(backward)
    whole = sum(backward.values())
    inputs = sum(times.input_gradient for times in measured.values())
    share = _input_share(run, inputs / whole if whole else 0.0)
    return OpCost(
        op=run.op,
        device_type=device_type,
        forward=forward_curve,
        input_gradient=_scale(backward_curve, share),
        weight_gradient=_scale(backward_curve, 1.0 - share),
        source="profiled",
        error=max(relative_error(forward_curve, forward), relative_error(backward_curve, backward)),
    )


def _measure(runs: Mapping[int, Sequence[OpRun]], effort: Effort) -> dict[Hashable, dict[int, Times]]:
    # All numbers of samples in turn: where the machine is slower for a while, it is for all of them.
    wanted = [(samples, twin) for samples, some in runs.items() for twin in dict.fromkeys(run.twin for run in some)]

    def once() -> list[float]:
        times = {samples: one_pass(some, samples, effort) for samples, some in runs.items()}
        return [mean(column) for samples, twin in wanted for column in zip(*times[samples][twin], strict=True)]

    figures = iter(replace(effort, seconds=effort.seconds * len(wanted)).sample(once))
    found: dict[Hashable, dict[int, Times]] = {twin: {} for _, twin in wanted}
    for samples, twin in wanted:
        found[twin][samples] = Times(*islice(figures, len(Times._fields)))
    return found


def one_pass(runs: Sequence[OpRun], samples: int, effort: Effort) -> dict[Hashable, list[Times]]:
    """Return what every operator takes, by its twin: two forwards of all, each with one of the two backwards."""
    effort.between()
    first = [_forward(run, samples, effort) for run in runs]
    effort.between()  # other micro-batches
    wholes = [_backward(state, effort) for state in reversed(first)][::-1]
    effort.between()
    second = [_forward(run, samples, effort) for run in runs]
    effort.between()
    inputs = [_input_gradient(state, effort) for state in reversed(second)][::-1]
    found: dict[Hashable, list[Times]] = {}
    for run, *states, whole, alone in zip(runs, first, second, wholes, inputs, strict=True):
        found.setdefault(run.twin, []).append(Times(mean(state.seconds for state in states), whole, alone))
    return found


def _forward(run: OpRun, samples: int, effort: Effort) -> _Forward:
    leaves, entered = _enter(run, samples)  # the operator before has just made what comes in
    start = effort.now()
    outputs = run.call(entered)
    seconds = effort.now() - start
    return _Forward(leaves, [output for output in outputs if output.requires_grad], seconds)


def _backward(state: _Forward, effort: Effort) -> float:
    if not state.roots:
        return 0.0
    gradients = [torch.ones_like(root) for root in state.roots]
    start = effort.now()
    torch.autograd.backward(state.roots, gradients)
    return effort.now() - start


def _input_gradient(state: _Forward, effort: Effort) -> float:
    if not (state.roots and state.leaves):
        return 0.0
    gradients = [torch.ones_like(root) for root in state.roots]
    start = effort.now()
    torch.autograd.grad(state.roots, state.leaves, gradients, allow_unused=True)
    return effort.now() - start


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
