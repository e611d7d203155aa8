"""Replicas of a stage have the same weights: checked before a checkpoint saves those of one of them."""

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.weight_digest import differing, summary_of


def check_replicas(world: World, state: PipelineState) -> None:
    """Check that all ranks that host a stage have the same weights of it; all ranks call this.

    Raises:
        InvalidInput: on every rank: two replicas differ by more than rounding. Names stage, parameter and ranks.
        PeerLost, PeerStalled: another rank is gone.
    """
    stages = [
        (number, position)
        for number, stage in enumerate(state.plan.stages)
        for position in range(stage.tensor if stage.degree > 1 else 0)
    ]
    if world.size == 1 or not stages:
        return
    own = {
        f"{number} {position}": summary_of(dict(state.programs[number].module.named_parameters()))
        for number, position in stages
        if number in state.hosted and state.positions.get(number, 0) == position
    }
    given = world.exchange(own)
    for number, position in stages:
        key = f"{number} {position}"
        ranks = [rank for rank, each in enumerate(given) if key in each]
        for rank in ranks[1:]:
            name = differing(given[ranks[0]][key], given[rank][key])
            if name:
                whole = state.programs[number].parameter_names[name]
                raise InvalidInput(
                    f"ranks {ranks[0]} and {rank} have replicas with different weights: '{whole}' differs",
                    where=f"stage '{state.plan.stages[number].name}'",
                    remedy="Something on one of them changes weights besides the pipeline. The earlier checkpoints are "
                    "unchanged.",
                )
