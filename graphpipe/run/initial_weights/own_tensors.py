"""Which tensors of the model a rank has: those of the stages that it hosts and, on rank 0, those that no stage uses."""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor, nn

from graphpipe.graph import ParameterSlice
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.torch_private import write_count
from graphpipe.run.initial_weights.weight_source import OwnTensor


def own_tensors(
    model: nn.Module, programs: Sequence[StageProgram], hosted: Collection[int], *, unused: bool
) -> list[OwnTensor]:
    """Return the tensors that a rank has, each once.

    Args:
        model: the user's.
        programs: of all stages.
        hosted: the stages with a replica on this rank.
        unused: whether this rank has the tensors that no stage uses.
    """
    names, saved = names_of(model), saved_ids(model)
    by_name = {name: tensor for tensor, name in named_tensors(model)}
    found: dict[int, OwnTensor] = {}
    used: set[str] = set()

    def own(whole: Tensor, tensor: Tensor, piece: ParameterSlice | None) -> OwnTensor:
        return OwnTensor(
            names=names[id(whole)],
            tensor=tensor,
            whole=whole,
            piece=piece,
            saved=id(whole) in saved,
            writes=write_count(whole),
        )

    for number, program in enumerate(programs):
        for name, tensor in stage_tensors(program):
            piece = ParameterSlice.parse(name)
            whole = by_name[piece.parameter if piece else name]
            used.update(names[id(whole)])
            if number in hosted and id(tensor) not in found:
                found[id(tensor)] = own(whole, tensor, piece)
    for tensor, name in named_tensors(model) if unused else ():
        if name not in used and id(tensor) not in found:
            found[id(tensor)] = own(tensor, tensor, None)
    return [*found.values()]


def named_tensors(model: nn.Module) -> Iterator[tuple[Tensor, str]]:
    """Yield the parameters and buffers of a model with each of their names."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield parameter, name
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield buffer, name


def all_tensors(model: nn.Module, programs: Sequence[StageProgram] = ()) -> list[Tensor]:
    """Return the parameters and buffers of a model and of its stages, each once."""
    tensors = [tensor for tensor, _ in named_tensors(model)]
    tensors += [tensor for program in programs for _, tensor in stage_tensors(program)]
    return [*{id(tensor): tensor for tensor in tensors}.values()]


def modules_of(model: nn.Module, programs: Sequence[StageProgram]) -> list[nn.Module]:
    """Return the modules that may hold a tensor of a model: the model itself, and its stages."""
    return [model, *(program.module for program in programs)]


def names_of(model: nn.Module) -> dict[int, tuple[str, ...]]:
    """Return all names of each parameter and buffer, by identity."""
    names: dict[int, tuple[str, ...]] = {}
    for tensor, name in named_tensors(model):
        names[id(tensor)] = (*names.get(id(tensor), ()), name)
    return names


def stage_tensors(program: StageProgram) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a stage with their names in the user's model."""
    for local, parameter in program.module.named_parameters():
        yield program.parameter_names[local], parameter
    for local, buffer in program.module.named_buffers():
        if local in program.buffer_names:
            yield program.buffer_names[local], buffer


def saved_ids(model: nn.Module) -> set[int]:
    """Return the identities of the tensors that are in the model's state_dict, under any name."""
    return {id(tensor) for tensor in model.state_dict(keep_vars=True).values() if isinstance(tensor, Tensor)}
