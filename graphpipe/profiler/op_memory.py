"""What operators hold only while they run: measured beside their times, on the same code and inputs."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphpipe.costs import Curve, Temporaries
from graphpipe.profiler.live_bytes import Living
from graphpipe.profiler.profile_ops import OpRun


def temporaries(run: OpRun, batch_sizes: Iterable[int], saved_bytes_per_sample: float) -> Temporaries:
    """Return what an operator holds while it runs, exact at the batch sizes and straight between them.

    Args:
        run: as it is timed.
        batch_sizes: numbers of samples to measure at; those that the operator refuses are left out.
        saved_bytes_per_sample: what the operator itself keeps for its backward: where it ends in the loss, all that is
            kept beyond it is the loss function's.
    """
    found: dict[int, _Held] = {}
    for samples in sorted({*batch_sizes}):
        # Batch normalisation refuses one sample. If it refuses all, who times it says so.
        with suppress(RuntimeError, ValueError):
            found[samples] = _measure(run, samples)
    kept = found[max(found)].kept / max(found) if found else 0.0
    return Temporaries(
        forward=_through({samples: held.forward for samples, held in found.items()}),
        backward=_through({samples: held.backward for samples, held in found.items()}),
        loss_bytes_per_sample=max(0.0, kept - saved_bytes_per_sample) if run.ends else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Held:
    # Bytes: what came and went in each pass, and what was alive between them.
    forward: int
    backward: int
    kept: int


def _measure(run: OpRun, samples: int) -> _Held:
    rows = {name: tensor[:samples].detach() for name, tensor in run.inputs.items()}
    for name in run.differentiable:
        rows[name].requires_grad_()
    entered = {name: tensor.clone() for name, tensor in rows.items()}
    living = Living()
    with _with_gradients(run.parameters):
        with living:
            outputs = run.call(entered)
        forward, kept = living.peak - living.bytes, living.bytes
        roots = [output for output in outputs if output.requires_grad]
        del outputs
        gradients = [torch.ones_like(root) for root in roots]
        before = living.bytes
        living.forget_peak()
        with living:
            if roots:
                torch.autograd.backward(roots, gradients)
    return _Held(forward, max(0, living.peak - before), kept)


@contextmanager
def _with_gradients(parameters: Sequence[Tensor]) -> Generator[None]:
    # All but the first micro-batch of a step add to gradients that are there.
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def _through(found: Mapping[int, int]) -> Curve:
    # The most of several moments, each linear in the samples, is convex: the largest of the lines through neighbouring
    # points goes through all of them.
    points = [*found.items()]
    if len(points) < 2:
        return Curve(lines=tuple((0.0, held / samples) for samples, held in points if held))
    lines = dict.fromkeys(_line(*pair) for pair in pairwise(points))
    return Curve(lines=tuple(line for line in lines if any(line)))


def _line(first: tuple[int, int], last: tuple[int, int]) -> tuple[float, float]:
    # Neither part is negative but where memory is padded.
    slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
    return max(0.0, round(last[1] - slope * last[0], 3)), slope
