"""Gives every rank the whole model, with the weights that are trained on other ranks."""

from collections.abc import Sequence

import torch
from torch import nn

from graphpipe.graph import ParameterSlice
from graphpipe.model.split.submodules import sliced
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.broadcast import broadcast_tensors, state_tensors
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.device.tensor_memory import give_memory
from graphpipe.run.initial_weights.own_tensors import all_tensors, modules_of, own_tensors, stage_tensors
from graphpipe.run.tensor.tensor_slices import is_divided, piece_of


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
        if model is not None and placement.plan.stages[stage].tensor > 1 and world.size > 1:
            _share_divided(model, program, placement, stage, world)
        else:
            broadcast_tensors(world, state_tensors(program.module), placement.ranks(stage)[0])
    if model is not None:
        unused = [each.tensor for each in own_tensors(model, programs, (), unused=True)]
        broadcast_tensors(world, unused, 0)


def _share_divided(model: nn.Module, program: StageProgram, placement: RankPlacement, stage: int, world: World) -> None:
    # Whole tensors come from the first rank of a replica. Of the others, each rank sends the slices that it has.
    plan, own = placement.plan, placement.position(stage, world.rank)
    hosted = placement.slot(stage, world.rank) is not None
    ranks = placement.team(stage, 0)
    named = dict(stage_tensors(program))
    slices = {name: tensor for name, tensor in named.items() if is_divided(plan, stage, name)}
    broadcast_tensors(world, [tensor for name, tensor in named.items() if name not in slices], ranks[0])
    for name, tensor in slices.items():
        piece = ParameterSlice.parse(name)
        assert piece is not None
        whole = model.get_parameter(piece.parameter).detach()
        for position, rank in enumerate(ranks):
            view = sliced(whole, piece_of(piece, whole.shape[piece.dimension], len(ranks), own, position))
            sent = tensor.detach() if hosted and position == own else torch.empty_like(view, device=world.device)
            broadcast_tensors(world, [sent], rank)
            with torch.no_grad():
                view.copy_(sent)
                if position == own:
                    tensor.copy_(sent)  # of a stage on other ranks, too: the slice is published with the others


def _give_memory(model: nn.Module, programs: Sequence[StageProgram]) -> None:
    for tensor in all_tensors(model, programs):
        if tensor.is_meta:
            give_memory(tensor, modules_of(model, programs))
