"""Slices of parameters: a stage trains its own memory, and the user's whole parameter gets the result.

In the user's model a linear layer that a plan splits has one weight. The parts on all ranks begin as views of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from graphpipe.graph import ParameterSlice
from graphpipe.model.split.submodules import sliced
from graphpipe.model.stage_program import StageProgram


def own_slices(program: StageProgram) -> None:
    """Give the slices of a stage contiguous memory of their own, as optimizers expect it."""
    for _, parameter in slices_of(program):
        if parameter.untyped_storage().nbytes() > parameter.numel() * parameter.element_size():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def publish_slices(model: nn.Module, programs: Iterable[StageProgram]) -> None:
    """Copy the slices of stages into the user's parameters. Views of these have the values already."""
    for view, parameter in _pairs(model, programs):
        view.copy_(parameter)


@torch.no_grad()
def adopt_slices(model: nn.Module, programs: Iterable[StageProgram]) -> None:
    """Copy the user's parameters into the slices of stages."""
    for view, parameter in _pairs(model, programs):
        parameter.copy_(view)


def _pairs(model: nn.Module, programs: Iterable[StageProgram]) -> Iterator[tuple[Tensor, nn.Parameter]]:
    # The part of the user's parameter for each slice that has memory of its own. A rank may have only its own slices,
    # or none where it has shards.
    for program in programs:
        for piece, parameter in slices_of(program):
            whole = model.get_parameter(piece.parameter)
            if not (whole.is_meta or parameter.is_meta):
                view = sliced(whole.detach(), piece)
                if view.data_ptr() != parameter.data_ptr():
                    yield view, parameter


def join(pieces: Mapping[str, Tensor]) -> Tensor | None:
    """Return the whole of a tensor from its slices by name; None if something is missing or there twice."""
    parts = sorted(((ParameterSlice.parse(name), tensor) for name, tensor in pieces.items()), key=_start)
    slices = [piece for piece, _ in parts if piece is not None]
    if len({piece.dimension for piece in slices}) != 1 or len(slices) < len(parts) or not follow_on(slices):
        return None
    return torch.cat([tensor for _, tensor in parts], dim=slices[0].dimension)


def follow_on(slices: Sequence[ParameterSlice]) -> bool:
    """True if every slice begins where the one before it ends, the first at 0."""
    return [piece.start for piece in slices] == [0, *(piece.stop for piece in slices[:-1])]


def _start(named: tuple[ParameterSlice | None, Tensor]) -> int:
    return named[0].start if named[0] is not None else 0


def slices_of(program: StageProgram) -> Iterator[tuple[ParameterSlice, nn.Parameter]]:
    """Yield the parameters of a stage that are slices of the user's."""
    parsed = {local: ParameterSlice.parse(name) for local, name in program.parameter_names.items()}
    found = {local: piece for local, piece in parsed.items() if piece is not None}
    if not found:  # Usually. Each step asks several times, and a walk over all modules takes a tenth of a millisecond.
        return
    for local, parameter in program.module.named_parameters():
        if local in found:
            yield found[local], parameter
