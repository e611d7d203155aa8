"""Times the real code of operators on this machine, and fits a curve to the times of each."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from graphpipe.costs.op_cost import Curve, Halves, OpCost
from graphpipe.errors import InvalidInput
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import WeightHalf, input_half
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.profiler.effort import Effort, TimeSpan
from graphpipe.profiler.fitting.fit_curve import fit_curve, relative_error
from graphpipe.profiler.operators.op_runs import OpRun

WINDOW_BYTES = 64 * 2**20
"""More than any cache holds."""
_MEASURING = 0.8
"""The part of an operator's time that its measurements take. Before them, it computes its output and is tried."""

_COMPANY = 3
"""Operators that run with one that is measured, though their costs are known."""
_BETWEEN = 4
"""Operators between two that compute nothing."""
_LEAST = 0.1
"""The share of an operator's measured time that it keeps at least, without the time of one that computes nothing."""

OnProgress = Callable[[float], object]


class Times(NamedTuple):
    """Seconds of an operator at some number of samples."""

    forward: float
    backward: float
    """Seconds of the backward: both input and weight gradients."""
    input_gradient: float
    input_half: float
    """Seconds of the first half of a split backward."""
    weight_half: float


class _Forward(NamedTuple):
    # What a backward needs from its forward: the inputs that need a gradient, and the outputs that have one.
    leaves: list[Tensor]
    roots: list[Tensor]
    span: TimeSpan


def profile_ops(
    runs: Iterable[OpRun],
    device_type: str,
    batch_sizes: Sequence[int],
    effort: Effort | None = None,
    *,
    empty: OpRun | None = None,
    find: Callable[[OpRun], OpCost | None] = lambda run: None,
    on_progress: OnProgress = lambda done: None,
) -> tuple[OpCost, ...]:
    """Return a measured row of the cost table for every run, in order.

    Operators are timed in the order of training: the forwards of several operators, then their backwards in reverse.
    Repeated by itself, an operator finds its code and memory in the caches, and can take half as long. One window of
    operators saves `WINDOW_BYTES` for the backward, which is more than caches hold. A longer model is measured window
    by window, and operators with equal signatures are measured only in the first window that has one.

    An operator by itself also takes longer because its code is entered, and its backward started, for it alone. A stage
    does this once for all of its operators. So an operator that computes nothing runs among the others, and its times
    are subtracted from theirs. On two cores of an EPYC, the sum of 6 to 9 operators was 4 to 21 % longer than the stage
    that consists of them (models of the zoo, 8 samples). With the subtraction, it was 4 % shorter to 7 % longer.

    Curves are fitted to the forward, to the whole backward, and to the halves of a split one. The whole backward is
    then divided between input and weight gradient in proportion to the measured time of the input gradient.
    `OpCost.error` is the larger of the two errors.

    Args:
        runs: read one at a time, so that only the inputs of one window are in memory at once.
        device_type: the name in the rows.
        batch_sizes: numbers of samples to measure at; an operator that refuses one (batch normalisation of one sample)
            is measured without it.
        effort: how long to measure each operator.
        empty: an operator that computes nothing (`empty_run`). None: nothing is subtracted.
        find: returns the row of an operator that was measured before. If another one is measured, a few of these run
            with it, so that the caches are as in training.
        on_progress: called from time to time with the number of operators that are done, which may be a fraction.

    Raises:
        InvalidInput: an operator refuses every batch size (its first reason is given).
    """
    effort = effort or Effort()
    known: dict[Hashable, OpCost] = {}
    order: list[tuple[str, Hashable]] = []
    window: list[OpRun] = []
    company: deque[OpRun] = deque(maxlen=_COMPANY)

    def show(measured: float) -> None:
        new = sum(run.signature not in known for run in window)
        on_progress(len(order) - _MEASURING * new * (1.0 - measured))

    for run in runs:
        order.append((run.op, run.signature))
        if run.signature not in known and (row := find(run)):
            known[run.signature] = row
            company.append(run)
        elif run.signature not in known:
            window += [other for other in company if other not in window]
            window.append(run)
        show(0.0)
        if sum(run.saved_bytes_per_sample for run in window) * max(batch_sizes) >= WINDOW_BYTES:
            known = _profile(window, device_type, batch_sizes, effort, empty, show) | known
            window.clear()
    if window:
        known = _profile(window, device_type, batch_sizes, effort, empty, show) | known
    on_progress(len(order))
    return tuple(replace(known[signature], op=op) for op, signature in order)


def _profile(
    window: Sequence[OpRun],
    device_type: str,
    batch_sizes: Sequence[int],
    effort: Effort,
    empty: OpRun | None,
    on_progress: OnProgress,
) -> dict[Hashable, OpCost]:
    # `on_progress` takes the part of the measurements that is done.
    accepted = _try(window, batch_sizes, effort)
    if empty is None:
        measured = _measure(accepted, effort, on_progress)
    else:
        among = {samples: [*_with_empty(some, empty)] for samples, some in accepted.items()}
        measured = _without(_measure(among, effort, on_progress), empty.signature)
    return {run.signature: _row(run, measured[run.signature], device_type) for run in window}


def _try(window: Sequence[OpRun], batch_sizes: Sequence[int], effort: Effort) -> dict[int, list[OpRun]]:
    # Returns the operators that accept each batch size. What a backward refuses, it refuses at every size, so that it
    # runs at one size only.
    accepted: dict[int, list[OpRun]] = {samples: [] for samples in batch_sizes}
    for run in window:
        refusal = ""
        tried = False
        for samples in batch_sizes:
            try:
                if tried:
                    _forward(run, samples, effort)
                else:
                    one_pass([run], samples, effort)
            except (RuntimeError, ValueError) as error:
                refusal = refusal or f"{samples} samples: {str(error).splitlines()[0]}"
            else:
                accepted[samples].append(run)
                tried = True
        if not tried:
            raise InvalidInput(f"cannot be run on {refusal}", where=f"operator '{run.op}'")
    return accepted


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
        input_gradient=backward_curve.times(share) if share else Curve(),
        weight_gradient=backward_curve.times(1.0 - share) if share < 1.0 else Curve(),
        source="profiled",
        halves=Halves(
            input=fit_curve({samples: times.input_half for samples, times in measured.items()}),
            weight=fit_curve({samples: times.weight_half for samples, times in measured.items()}),
        ),
        measured_samples=(min(measured), max(measured)),
        error=max(relative_error(forward_curve, forward), relative_error(backward_curve, backward)),
    )


def _with_empty(runs: Sequence[OpRun], empty: OpRun) -> Iterable[OpRun]:
    for position, run in enumerate(runs):
        yield run
        if position % _BETWEEN == 0:
            yield empty


def _without(measured: Mapping[Hashable, Mapping[int, Times]], empty: Hashable) -> dict[Hashable, dict[int, Times]]:
    # The times without what an operator takes that computes nothing.
    alone = measured[empty]
    return {
        signature: {samples: _less(times, alone[samples]) for samples, times in by_samples.items()}
        for signature, by_samples in measured.items()
        if signature != empty
    }


def _less(times: Times, alone: Times) -> Times:
    return Times(*(max(time - less, _LEAST * time) for time, less in zip(times, alone, strict=True)))


def _measure(
    runs: Mapping[int, Sequence[OpRun]], effort: Effort, on_progress: OnProgress
) -> dict[Hashable, dict[int, Times]]:
    # Batch sizes alternate, so that a slow period of the machine affects all of them alike. Every operator has run at
    # every size before, when it was tried.
    wanted = [(samples, key) for samples, some in runs.items() for key in dict.fromkeys(run.signature for run in some)]

    effort = replace(effort, seconds=effort.seconds * len(wanted))
    start, passes = effort.clock(), 0
    while effort.clock() - start < effort.warm_up_seconds:
        for samples, some in runs.items():
            one_pass(some, samples, effort)
    start = effort.clock()

    def once() -> list[float]:
        nonlocal passes
        times: dict[int, dict[Hashable, list[Times]]] = {}
        for samples, some in runs.items():
            times[samples] = one_pass(some, samples, effort)
            passes += 1
            on_progress(effort.share(passes / len(runs), effort.clock() - start))
        return [
            mean(column) for samples, signature in wanted for column in zip(*times[samples][signature], strict=True)
        ]

    figures = iter(effort.sample(once))
    times_by_samples: dict[Hashable, dict[int, Times]] = {signature: {} for _, signature in wanted}
    for samples, signature in wanted:
        times_by_samples[signature][samples] = Times(*islice(figures, len(Times._fields)))
    return times_by_samples


def one_pass(runs: Sequence[OpRun], samples: int, effort: Effort) -> dict[Hashable, list[Times]]:
    """Return the times of every operator, by its signature.

    All operators run three forwards: one followed by the whole backward, one by the input gradient, and one by the two
    halves of a split backward, of which the second runs once all operators have done the first.
    """
    effort.between()
    first = [_forward(run, samples, effort) for run in runs]
    effort.between()
    wholes = [_backward(state, effort) for state in reversed(first)][::-1]
    effort.between()
    second = [_forward(run, samples, effort) for run in runs]
    effort.between()
    inputs = [_input_gradient(state, effort) for state in reversed(second)][::-1]
    effort.between()
    halves = _halves(runs, samples, effort)
    forward_spans = [state.span for state in (*first, *second)]
    seconds = iter(effort.seconds_of([*forward_spans, *wholes, *inputs, *chain.from_iterable(halves)]))
    first_forwards, forwards, whole, by_input = ([*islice(seconds, len(runs))] for _ in range(4))
    times: dict[Hashable, list[Times]] = {}
    for run, *own in zip(runs, first_forwards, forwards, whole, by_input, strict=True):
        forward, again, backward, gradient = own
        figures = Times(mean((forward, again)), backward, gradient, next(seconds), next(seconds))
        times.setdefault(run.signature, []).append(figures)
    return times


def _halves(runs: Sequence[OpRun], samples: int, effort: Effort) -> list[tuple[TimeSpan, TimeSpan]]:
    saved = [ReleasableTensors(trusts=lambda count: False) for _ in runs]
    states = [_forward(run, samples, effort, each) for run, each in zip(runs, saved, strict=True)]
    effort.between()
    first = [_input_half(state, each, effort) for state, each in zip(reversed(states), reversed(saved), strict=True)]
    effort.between()
    second = [_timed(half.run, effort) for half, _ in first]
    return [(span, after) for (_, span), after in zip(first, second, strict=True)][::-1]


def _input_half(state: _Forward, saved: ReleasableTensors, effort: Effort) -> tuple[WeightHalf, TimeSpan]:
    if not state.roots:
        return WeightHalf(), _nothing(effort)  # nothing trains
    gradients = [torch.ones_like(root) for root in state.roots]
    start = effort.now()
    half = input_half(state.roots, gradients, state.leaves, saved, check=False)
    return half, (start, effort.now())


def _forward(run: OpRun, samples: int, effort: Effort, saved: ReleasableTensors | None = None) -> _Forward:
    leaves, entered = run.enter(samples)  # in the caches, as if the previous operator had just computed it
    with handle_saved_tensors(saved) if saved else nullcontext():
        start = effort.now()
        outputs = run.call(entered)
        span = start, effort.now()
    return _Forward(leaves, [output for output in outputs if output.requires_grad], span)


def _backward(state: _Forward, effort: Effort) -> TimeSpan:
    if not state.roots:
        return _nothing(effort)
    gradients = [torch.ones_like(root) for root in state.roots]
    return _timed(lambda: torch.autograd.backward(state.roots, gradients), effort)


def _input_gradient(state: _Forward, effort: Effort) -> TimeSpan:
    if not (state.roots and state.leaves):
        return _nothing(effort)
    gradients = [torch.ones_like(root) for root in state.roots]
    return _timed(lambda: torch.autograd.grad(state.roots, state.leaves, gradients, allow_unused=True), effort)


def _timed(call: Callable[[], object], effort: Effort) -> TimeSpan:
    start = effort.now()
    call()
    return start, effort.now()


def _nothing(effort: Effort) -> TimeSpan:
    moment = effort.now()
    return moment, moment


def _input_share(run: OpRun, measured: float) -> float:
    if not run.parameters:
        return 1.0
    return min(1.0, measured) if run.differentiable else 0.0
