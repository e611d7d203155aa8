"""Which parameters of a stage the ranks that share it divide, and which of them have the whole.

stage of t = 2        rank 0                  rank 1
divided               up.weight[0:4]          up.weight[4:8]        both count in norms, both are saved
copied                norm.weight             norm.weight           rank 0 counts and saves it
"""

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice, parameter_of
from graphpipe.model.shards.team import own_range
from graphpipe.plans import Plan


def divided_parameters(plan: Plan, stage: int) -> frozenset[str]:
    """Return the names of the parameters that the ranks of each replica of a stage divide.

    A parameter that stages share is divided if all of them divide it among as many ranks. Otherwise all have the whole.
    """
    return _divided(plan)[stage]


def is_divided(plan: Plan, stage: int, name: str) -> bool:
    """Return whether the name of a parameter, or slice, is that of a part that one rank of a stage has."""
    return parameter_of(name) in divided_parameters(plan, stage) and ParameterSlice.parse(name) is not None


def counted(plan: Plan, stage: int, position: int, name: str) -> bool:
    """Return whether a rank counts and saves a parameter of a stage: its own part, or the whole at position 0."""
    return position == 0 or is_divided(plan, stage, name)


def piece_of(piece: ParameterSlice, length: int, size: int, own: int, position: int) -> ParameterSlice:
    """Return the slice that another rank has in the place of one.

    Args:
        piece: of a rank.
        length: of the whole parameter, in the dimension that is divided.
        size: how many ranks share it.
        own: the position of the rank that has `piece`.
        position: of the other rank.
    """
    if length % size:  # only a vocabulary: it is one part, and those of ranks differ by one
        start, stop = own_range(length, size, position)
        return replace(piece, start=start, stop=stop)
    moved = (position - own) * (piece.stop - piece.start)
    return replace(piece, start=piece.start + moved, stop=piece.stop + moved)


def check_tied(plan: Plan) -> None:
    """Check that the ranks of all stages that share parameters can sum their gradients.

    Raises:
        InvalidInput: stages share a parameter that some divide, and others that none divides.
    """
    for tied in plan.tied_gradients:
        shared = {name in divided_parameters(plan, stage) for stage in tied.stages for name in tied.parameters}
        if len(shared) > 1:
            names = ", ".join(f"'{plan.stages[stage].name}'" for stage in tied.stages)
            raise InvalidInput(
                f"stages {names} share '{tied.parameters[0]}' and others, of which only some are divided among ranks",
                where="tied parameters",
                remedy="Leave them whole: with_shards(graph, model, {'NAME': 'copied'}).",
            )


@lru_cache(maxsize=16)
def _divided(plan: Plan) -> tuple[frozenset[str], ...]:
    own = [_listed(plan, stage) for stage in range(len(plan.stages))]
    whole: Collection[str] = {
        name
        for tied in plan.tied_gradients
        for name in tied.parameters
        if len({plan.stages[stage].tensor if name in own[stage] else 1 for stage in tied.stages}) > 1
    }
    return tuple(names - {*whole} for names in own)


def _listed(plan: Plan, stage: int) -> frozenset[str]:
    here = plan.stages[stage]
    if here.tensor == 1:
        return frozenset()
    shards = [plan.graph[op].shards for op in here.ops]
    return frozenset(name for each in shards if each is not None for name, _ in each.parameters)
