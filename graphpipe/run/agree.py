"""The handshake: all ranks must mean the same run before the first message, or buffers would be misread."""

import socket
from hashlib import sha256

from graphpipe.errors import InvalidInput
from graphpipe.plan import Plan
from graphpipe.run.placement import Placement
from graphpipe.run.values import EdgeSpecs
from graphpipe.run.world import World

_REMEDIES = {
    "plan": "Give every rank the same plan file.",
    "values on the stage edges": "Build the same model, with the same example inputs and frozen parts, on every rank.",
    "seed": "Give every rank the same seed.",
}


def agree(world: World, plan: Plan, placement: Placement, specs: EdgeSpecs, seed: int) -> None:
    """Compare plan, edge values and seed over all ranks, and learn where each is; every rank must call this.

    Raises:
        InvalidInput: on every rank, if any two differ; says which rank differs from rank 0, and in what.
    """
    own = {"plan": plan.fingerprint, "values on the stage edges": digest(specs), "seed": seed}
    here = socket.gethostname()
    ranks = world.exchange(own | {"host": here, "place": world.reach.place})
    world.reach.hosts = {
        other["host"]: (other["place"][0], other["place"][1])
        for other in ranks
        if other["place"] and other["host"] != here
    }
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
