"""Gives every rank the whole model, with the weights that are trained on other ranks."""

from collections.abc import Sequence

from torch import Tensor, nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.broadcast import broadcast_tensors, state_tensors
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.device.tensor_memory import give_memory
from graphpipe.run.initial_weights.own_tensors import named_tensors, own_tensors, stage_tensors


def share_whole_model(
    model: nn.Module | None, programs: Sequence[StageProgram], placement: RankPlacement, world: World
) -> None:
    """Give every rank's model memory and the weights of all stages; every rank must call this.

    Args:
        model: the user's; None if there are only programs.
        programs: of all stages, with whole weights on the ranks that host them.
        placement: of the plan on the ranks.
        world: this rank.
    """
    if model is not None:
        _give_memory(model, programs)
    for stage, program in enumerate(programs):
        broadcast_tensors(world, state_tensors(program.module), placement.ranks(stage)[0])
    if model is not None:
        unused = [each.tensor for each in own_tensors(model, programs, (), unused=True)]
        broadcast_tensors(world, unused, 0)


def _give_memory(model: nn.Module, programs: Sequence[StageProgram]) -> None:
    roots = [model, *(program.module for program in programs)]
    tensors: list[Tensor] = [tensor for tensor, _ in named_tensors(model)]
    tensors += [tensor for program in programs for _, tensor in stage_tensors(program)]
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if tensor.is_meta:
            give_memory(tensor, roots)
