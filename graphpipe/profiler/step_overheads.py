"""Profiling what a training step costs besides its operators: the optimizer, and the runtime around each task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import norms
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.operators.op_runs import OpRun

_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What the optimizer costs, per byte of the parameters it updates."""

    seconds_per_parameter_byte: float
    state_bytes_per_parameter_byte: float
    """Bytes of parameters, gradients and optimizer state, in units of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverheads:
    """What a step costs besides its operators."""

    optimizer: OptimizerCost
    """What the optimizer costs."""
    task_overhead_seconds: float
    """Seconds that the runtime adds to the operators of a task."""


def optimizer_of_copies(
    parameters: Sequence[Tensor],
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    device: torch.device | None = None,
) -> torch.optim.Optimizer | None:
    """Return an optimizer of copies of these parameters on a device (None: their own); None without parameters.

    For a large model, it has only the first parameters up to 256 MiB.
    """
    copies = [nn.Parameter(torch.zeros_like(parameter, device=device)) for parameter in _first(parameters)]
    return optimizer([*copies]) if copies else None


def profile_optimizer(stepper: torch.optim.Optimizer | None, effort: Effort) -> OptimizerCost:
    """Return the measured cost of the steps of an optimizer (None: of no parameters), which changes its parameters.

    The norm of the gradients is timed with the step, because the runtime looks at it to see whether they are finite.
    If `effort.between` runs operators, both have left the caches before each measurement, as in training.
    """
    if stepper is None:
        return OptimizerCost(seconds_per_parameter_byte=0.0, state_bytes_per_parameter_byte=2.0)
    copies: list[Tensor] = [parameter for group in stepper.param_groups for parameter in group["params"]]
    gradients = [torch.ones_like(copy) for copy in copies]
    for copy, gradient in zip(copies, gradients, strict=True):
        copy.grad = gradient

    def once() -> tuple[float]:
        effort.between()
        start = effort.now()
        norms(gradients)
        stepper.step()
        (seconds,) = effort.seconds_of([(start, effort.now())])
        return (seconds,)

    once()
    (seconds,) = effort.sample(once)
    size = _bytes(copies)
    state = _bytes([item for items in stepper.state.values() for item in items.values() if isinstance(item, Tensor)])
    return OptimizerCost(seconds_per_parameter_byte=seconds / size, state_bytes_per_parameter_byte=2.0 + state / size)


def profile_task_overhead(empty: OpRun, effort: Effort) -> float:
    """Return the seconds that the runtime adds to the operators of a task: half of what it adds to a micro-batch.

    The timed code seeds a generator, cuts rows out, enters a stage that computes nothing, takes the norm of the result
    and runs an empty backward. If `effort.between` runs operators, this code has left the caches before each
    measurement. The cost of messages is in the cluster's links.

    Args:
        empty: an operator that computes nothing.
        effort: how long to measure.
    """
    ((name, rows),) = empty.inputs.items()

    def once() -> tuple[float]:
        effort.between()
        start = effort.now()
        torch.default_generator.manual_seed(0)
        (out,) = empty.call({name: rows[:1].detach().requires_grad_()})
        torch.linalg.vector_norm(out.detach())
        torch.autograd.backward([out], [torch.ones_like(out)])
        (seconds,) = effort.seconds_of([(start, effort.now())])
        return (seconds / 2,)

    once()
    (seconds,) = effort.sample(once)
    return seconds


def _first(parameters: Sequence[Tensor]) -> list[Tensor]:
    sizes = list(accumulate(_bytes([parameter]) for parameter in parameters))
    return [parameter for parameter, size in zip(parameters, sizes, strict=True) if size <= max(_MOST_BYTES, sizes[0])]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
