"""Whether a compiled stage has the gradients of the eager one.

Torch's compiler may be wrong, and it says nothing: with torch 2.13 on a CPU, the bias of a group norm on images of one
pixel gets another gradient. So the first compiled micro-batch of a stage is computed both ways.
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import input_half, why_whole
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.device.rng import preserve_rng_state, seed
from graphpipe.run.stage.losses.fixed_gradient import fixed_gradient, small_ones
from graphpipe.run.stage.losses.parts_of_samples import is_low
from graphpipe.run.stage.tensor_tree import leaves

_Gradients = dict[str, Tensor]
_APART, _APART_IN_16_BITS = 1e-2, 0.2
"""Relative to the largest element of a gradient. The compiler sums in another order, and keeps more bits in between."""
_CANCELLED = 1e-4
"""Relative to the largest of all gradients: a gradient may be a sum of terms that cancel."""


def check_compiled(
    program: StageProgram, values: Mapping[str, Tensor], number: int, device: torch.device, stage: str, *, splits: bool
) -> None:
    """Check the gradients of a stage that is compiled now against those of the eager stage. Nothing is kept.

    Only the smaller parameters are compared, such as biases: gradients of all would take as much memory as weights.

    Args:
        program: of the stage.
        values: that it reads, of a micro-batch.
        number: the seed of its random numbers.
        device: where it runs.
        stage: its name.
        splits: whether its backwards are split into two halves.

    Raises:
        InvalidInput: a gradient differs by more than rounding.
    """
    before = [(buffer, buffer.clone()) for buffer in program.module.buffers()]
    with preserve_rng_state(device):
        with torch.compiler.set_stance("force_eager"):
            eager = _gradients(program, values, number, device, splits=False)
        _restore(before)
        compiled = _gradients(program, values, number, device, splits=splits)
        _restore(before)
    low = any(map(is_low, (*values.values(), *compiled.values()))) or torch.is_autocast_enabled(device.type)
    apart = _APART_IN_16_BITS if low else _APART
    largest = max((each.abs().max().item() for each in eager.values()), default=0.0)
    for name, gradient in eager.items():
        size, other = gradient.abs().max().item(), compiled.get(name, torch.zeros_like(gradient))
        distance = (other - gradient).abs().max().item()
        if not distance <= apart * size + _CANCELLED * largest and math.isfinite(size):  # a NaN is no number
            raise InvalidInput(
                f"the compiled stage has another gradient of '{name}' than the eager one: {distance:.2g} apart, with a "
                f"largest element of {size:.2g}",
                where=f"stage '{stage}'",
                remedy="Leave out compile: torch's compiler is wrong here, or a forward differs from call to call.",
            )


def _gradients(
    program: StageProgram, values: Mapping[str, Tensor], number: int, device: torch.device, *, splits: bool
) -> _Gradients:
    own = {name: value.detach().clone().requires_grad_(value.requires_grad) for name, value in values.items()}
    received = {name: value for name, value in own.items() if value.requires_grad}
    names = program.parameter_names
    named = program.module.named_parameters()
    trained = small_ones({names[name]: each for name, each in named if each.requires_grad})
    wanted = [*trained, *received]
    seed(device, number)
    # A forward may write into what it gets, which a leaf does not allow.
    sent, result = program({name: value.clone() if name in received else value for name, value in own.items()})
    ends = [*sent.values(), *leaves(result)]
    roots = [each for each in ends if each.requires_grad]
    if not roots or not wanted:
        return {}
    given = [fixed_gradient(each, 0) if each.dim() else torch.ones_like(each) for each in roots]
    arrived, parameters = [*received.values()], [*trained.values()]
    if splits and not why_whole(roots, arrived):
        half = input_half(roots, given, arrived, ReleasableTensors(_keeps), check=False)
        made = [*half.of(parameters), *(each.grad for each in arrived)]
    else:
        made = torch.autograd.grad(roots, [*parameters, *arrived], given, allow_unused=True)
    found = zip(wanted, cast("Sequence[Tensor | None]", made), strict=True)
    return {name: each.detach().to_dense().clone() for name, each in found if each is not None}


def _keeps(saved: int) -> bool:
    del saved
    return False


def _restore(before: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
