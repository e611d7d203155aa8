"""The handshake: before the first message, all ranks check that they run the same plan, model and options."""

import socket
from collections.abc import Mapping

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.meeting.reachability import Reachability

_REMEDIES = {
    "plan": "Give every rank the same plan file.",
    "engine": "Give every rank the same engine.",
    "devices of gradients": "Place gradients by the same plan on every rank.",
    "optimizer sharding": "Give every rank the same shard_optimizer.",
    "precision": "Give every rank the same precision.",
    "values on the stage edges": "Build the same model, with the same example inputs and frozen parts, on every rank.",
    "seed": "Give every rank the same seed.",
    "limit of the gradients": "Give every rank the same clip_norm.",
    "decay of averages": "Give every rank the same average_decay.",
    "model, with equal shapes,": "Run the same source on every host, and build the same layers on every rank.",
    "loss_fn": "Run the same source on every host, and give every rank the same loss.",
}


def shake_hands(world: World, plan: Plan, placement: RankPlacement, settings: Mapping[str, str | int]) -> None:
    """Compare plan and settings over all ranks, and record where each rank is; every rank must call this.

    Otherwise ranks could misread each other's messages.

    Args:
        world: this rank; its `hosts` and `reach` are filled in.
        plan: to be run.
        placement: of the plan on the ranks.
        settings: of this rank, with some of the keys of `_REMEDIES` other than `plan`, the same on all ranks.

    Raises:
        InvalidInput: on every rank, if two ranks differ; names the rank that differs from rank 0, and the setting.
    """
    own = {"plan": plan.fingerprint, **settings}
    if world.size > 1:
        world.reach = Reachability.open()
    ranks = world.exchange(own | {"host": socket.gethostname(), "place": world.reach.place})
    world.reach.learn({tuple(other["place"]): other["host"] for other in ranks if other["place"]})
    for rank, other in enumerate(ranks):
        names = [f"'{plan.stages[stage].name}'" for stage in sorted({slot.stage for slot in placement.slots(rank)})]
        hosted = f"stage{'s' * (len(names) > 1)} {', '.join(names)}" if names else "without a stage"
        world.hosts[rank] = f"host {other['host']}, {hosted}"
    for what, remedy in _REMEDIES.items():
        for rank, other in enumerate(ranks):
            if other.get(what) != ranks[0].get(what):
                first, second = str(ranks[0].get(what))[:12], str(other.get(what))[:12]
                raise InvalidInput(
                    f"rank {rank} has another {what} than rank 0 ({second} against {first})", remedy=remedy
                )
