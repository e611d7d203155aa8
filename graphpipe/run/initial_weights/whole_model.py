"""Gives every rank the whole model, with the weights that are trained on other ranks."""

from collections.abc import Sequence

from torch import nn

from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.broadcast import broadcast_tensors, state_tensors
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.device.tensor_memory import give_memory
from graphpipe.run.initial_weights.own_tensors import all_tensors, modules_of, own_tensors


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
    for tensor in all_tensors(model, programs):
        if tensor.is_meta:
            give_memory(tensor, modules_of(model, programs))
