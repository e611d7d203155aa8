"""Profiling what a training step costs beside the operators: the optimizer, and the entry into a task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from graphpipe.profiler.profile_ops import Effort

_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What the optimizer costs, per byte of the parameters it updates."""

    seconds_per_parameter_byte: float
    state_bytes_per_parameter_byte: float
    """Parameters, gradients and optimizer state."""


def profile_optimizer(
    parameters: Sequence[Tensor], optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], effort: Effort
) -> OptimizerCost:
    """Return the measured cost of optimizer steps on parameters of these shapes (not on these parameters).

    Of a large model, the first parameters up to 256 MiB stand for all.
    """
    copies = [nn.Parameter(torch.zeros_like(each)) for each in _first(parameters)]
    if not copies:
        return OptimizerCost(seconds_per_parameter_byte=0.0, state_bytes_per_parameter_byte=2.0)
    for copy in copies:
        copy.grad = torch.ones_like(copy)
    stepper = optimizer([*copies])

    def once() -> tuple[float]:
        effort.between()
        start = effort.now()
        stepper.step()
        return (effort.now() - start,)

    (seconds,) = effort.sample(once)
    size = _bytes(copies)
    state = _bytes([item for held in stepper.state.values() for item in held.values() if isinstance(item, Tensor)])
    return OptimizerCost(seconds_per_parameter_byte=seconds / size, state_bytes_per_parameter_byte=2.0 + state / size)


def profile_task_overhead(effort: Effort) -> float:
    """Return seconds of what the runtime does around an operator: half of what it does around a micro-batch.

    Generators are seeded, rows are cut out, what comes out is looked at, and a backward goes through nothing: the code
    of which is in no cache after an operator's, if `effort.between` runs one. What messages add is in the cluster's
    links.
    """
    rows = torch.zeros(2, 1)

    def once() -> tuple[float]:
        effort.between()
        start = effort.now()
        torch.default_generator.manual_seed(0)
        leaf = rows[:1].detach().requires_grad_()
        out = leaf.view_as(leaf)
        torch.linalg.vector_norm(out.detach())
        torch.autograd.backward([out], [torch.ones_like(out)])
        return ((effort.now() - start) / 2,)

    (seconds,) = effort.sample(once)
    return seconds


def _first(parameters: Sequence[Tensor]) -> list[Tensor]:
    sizes = list(accumulate(_bytes([parameter]) for parameter in parameters))
    return [each for each, size in zip(parameters, sizes, strict=True) if size <= max(_MOST_BYTES, sizes[0])]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
