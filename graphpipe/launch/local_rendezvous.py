"""Torch's elastic agent where it is alone: it starts the ranks of one machine, and no other agent can come.

Torch's own ways for agents to meet unpickle what they find in their store: one that listens at a port would run the
code of whoever reaches it first. Here nothing listens and nothing is read. The ranks meet in a store of their own,
which rank 0 hosts (see `store`).
"""

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from graphpipe.run.comm.rendezvous_store import LOOPBACK

BACKEND = "graphpipe"
"""The name under which torch finds it; its endpoint is where the ranks meet, `address:port`."""


class Alone(RendezvousHandler):
    """The one agent.

    Args:
        port: where the ranks meet, on the loopback interface; 0 is any free one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._closed = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Say where the ranks meet; there is nobody to wait for."""
        store = dist.HashStore()  # in this process's memory
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo.build(0, store, LOOPBACK, self._port))

    def get_backend(self) -> str:
        """Return its name."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return its name: there is one run."""
        return BACKEND

    def num_nodes_waiting(self) -> int:
        """Nobody waits."""
        return 0

    def is_closed(self) -> bool:
        """True once it is over."""
        return self._closed

    def set_closed(self) -> None:
        """Note that it is over."""
        self._closed = True

    def shutdown(self) -> bool:
        """Nothing is open."""
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return Alone(int(parameters.endpoint.rpartition(":")[2]))


rendezvous_handler_registry.register(BACKEND, _create)
