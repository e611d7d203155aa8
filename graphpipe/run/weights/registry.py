"""The replica synchronisations by name: values of `Pipeline(..., engine=...)` and of `train.engine`.

To add one, write its file and a line here. Other packages call `register_sync`, or declare an entry point. An entry
point is also found in the processes that `graphpipe train` starts:

    [project.entry-points."graphpipe.replica_syncs"]
    gossip = "their_package.gossip:Gossip"
"""

from graphpipe.errors import InvalidInput, nearest
from graphpipe.plugins import load_plugins
from graphpipe.run.weights.fsdp.sync_fsdp2 import Fsdp2
from graphpipe.run.weights.fsdp.sync_fsdp2_layers import Fsdp2Layers
from graphpipe.run.weights.replica_sync import ReplicaSync
from graphpipe.run.weights.sync_allreduce import AllReduce
from graphpipe.run.weights.sync_ddp import Ddp

DEFAULT_SYNC = "allreduce"
ENTRY_POINTS = "graphpipe.replica_syncs"
"""Group of the entry points by which installed packages add synchronisations."""

REPLICA_SYNCS: dict[str, type[ReplicaSync]] = {
    DEFAULT_SYNC: AllReduce,
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "fsdp2-layers": Fsdp2Layers,
}


def register_sync(name: str, sync: type[ReplicaSync]) -> None:
    """Add a synchronisation. Every rank must do so before it builds a pipeline or reads a configuration.

    Raises:
        InvalidInput: another one has this name.
    """
    if REPLICA_SYNCS.get(name, sync) is not sync:
        raise InvalidInput(
            f"replica synchronisation '{name}' is already {REPLICA_SYNCS[name].__qualname__}",
            where=sync.__qualname__,
            remedy="Register it under another name.",
        )
    REPLICA_SYNCS[name] = sync


def find_sync(name: str, *, where: str = "engine") -> type[ReplicaSync]:
    """Return the synchronisation of this name.

    Args:
        name: registered, or of an entry point.
        where: the setting that holds the name, for errors.

    Raises:
        InvalidInput: the name is unknown (the nearest one is given).
    """
    if name not in REPLICA_SYNCS:
        _register_installed()  # Only now, because reading the entry points takes milliseconds.
    if name not in REPLICA_SYNCS:
        raise InvalidInput(f"unknown engine '{name}'", where=where, remedy=nearest(name, list(REPLICA_SYNCS)))
    return REPLICA_SYNCS[name]


def _register_installed() -> None:
    for name, sync in load_plugins(ENTRY_POINTS, type):
        if not issubclass(sync, ReplicaSync):
            raise InvalidInput(
                f"{sync.__qualname__} is not a subclass of ReplicaSync",
                where=f"entry point '{name}' of {ENTRY_POINTS}",
                remedy="Derive it from graphpipe.run.weights.replica_sync.ReplicaSync.",
            )
        register_sync(name, sync)
