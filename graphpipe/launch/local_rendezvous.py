"""The rendezvous of torch's elastic agent on a single machine, where no other agent can join.

Torch's own rendezvous handlers unpickle what they find in their store. One that listens at a port would run the code of
whoever connects first. This handler opens no port and reads nothing. The ranks meet in a store of their own, which rank
0 hosts (see `run.meeting.rendezvous_store`).
"""

import socket
from contextlib import suppress
from random import SystemRandom

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from graphpipe.run.meeting.rendezvous_store import LOOPBACK

BACKEND = "graphpipe"
"""The name under which torch finds this handler. Its endpoint is the address and port where the ranks meet."""


_PORTS = range(10_000, 32_768)


class LocalRendezvous(RendezvousHandler):
    """The rendezvous of a single agent.

    Args:
        port: where the ranks meet, on the loopback interface; 0 is any free port.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._closed = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return where the ranks meet, without waiting for other agents."""
        store = dist.HashStore()  # in this process's memory
        port = self._port or free_port()
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo.build(0, store, LOOPBACK, port))

    def get_backend(self) -> str:
        """Return the backend's name."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the backend's name, because there is only one run."""
        return BACKEND

    def num_nodes_waiting(self) -> int:
        """Return 0, because no other agent can join."""
        return 0

    def is_closed(self) -> bool:
        """True after `set_closed`."""
        return self._closed

    def set_closed(self) -> None:
        """Mark the rendezvous as closed."""
        self._closed = True

    def shutdown(self) -> bool:
        """Return True: there is nothing to close."""
        return True


def free_port() -> int:
    """Return a free port that no connection gets by itself before rank 0 listens there, seconds later.

    Systems give connections the ports above these. Torch would take one of those.
    """
    for port in SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    return 0


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LocalRendezvous(int(parameters.endpoint.rpartition(":")[2]))


rendezvous_handler_registry.register(BACKEND, _create)
