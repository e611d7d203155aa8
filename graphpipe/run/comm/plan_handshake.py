"""The handshake: all ranks must mean the same run before the first message, or buffers would be misread."""

import socket
from collections.abc import Mapping
from hashlib import sha256

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.reachability import Reach
from graphpipe.run.comm.world import World
from graphpipe.run.stage.edge_values import EdgeSpecs

_REMEDIES = {
    "plan": "Give every rank the same plan file.",
    "engine": "Give every rank the same engine.",
    "optimizer sharding": "Give every rank the same shard_optimizer.",
    "precision": "Give every rank the same precision.",
    "values on the stage edges": "Build the same model, with the same example inputs and frozen parts, on every rank.",
    "seed": "Give every rank the same seed.",
}


def agree(
    world: World, plan: Plan, placement: Placement, specs: EdgeSpecs, seed: int, settings: Mapping[str, str]
) -> None:
    """Compare plan, edge values, seed and settings over all ranks, and learn where each is; every rank must call this.

    Args:
        world: this rank.
        plan: to be run.
        placement: of the plan on the ranks.
        specs: the values on every edge.
        seed: of all random numbers.
        settings: the engine, the sharding of the optimizer's state, and the precision, by these names.

    Raises:
        InvalidInput: on every rank, if any two differ; says which rank differs from rank 0, and in what.
    """
    own = {"plan": plan.fingerprint, **settings, "values on the stage edges": digest(specs), "seed": seed}
    if world.size > 1:
        world.reach = Reach.open()
    ranks = world.exchange(own | {"host": socket.gethostname(), "place": world.reach.place})
    world.reach.learn({tuple(other["place"]): other["host"] for other in ranks if other["place"]})
    for rank, other in enumerate(ranks):
        stages = sorted({seat.stage for seat in placement.seats(rank)})
        hosted = ", ".join(f"'{plan.stages[stage].name}'" for stage in stages)
        world.hosts[rank] = f"host {other['host']}, stage{'s' * (len(stages) > 1)} {hosted}"
    for what, remedy in _REMEDIES.items():
        for rank, other in enumerate(ranks):
            if other[what] != ranks[0][what]:
                first, second = str(ranks[0][what])[:12], str(other[what])[:12]
                raise InvalidInput(
                    f"rank {rank} has another {what} than rank 0 ({second} against {first})", remedy=remedy
                )


def digest(specs: EdgeSpecs) -> str:
    """Return the SHA-256 of the names, shapes, dtypes and gradients of all values on all edges."""
    text = [
        f"{edge} {spec.name} {spec.sample_shape} {spec.dtype} {spec.requires_grad}"
        for edge, values in sorted(specs.items())
        for spec in values
    ]
    return sha256("\n".join(text).encode()).hexdigest()
