"""Which hosts can still be reached: asked when a rank was waited for in vain.

Ranks wait for each other in chains. When a host is cut off, all ranks give up at the same time, most of them waiting
for one on a host that is well. So the first rank of every host keeps a socket open that nobody ever talks to: as long
as the host runs and its cable is in, the system answers whoever knocks, be the rank busy, stopped or dead.
"""

import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address

from graphpipe.run.comm.host_address import own_address

PATIENCE_SECONDS = 2.0
_KNOCKS = 1024
"""How many may knock: none is ever let in."""

Place = tuple[str, int]
"""An address and a port."""


@dataclass(slots=True)
class Reach:
    """This host's socket, and where those of the others are. Empty among the ranks of one machine."""

    address: str = ""
    """By which this host meets the others."""
    listener: socket.socket | None = None
    hosts: dict[Place, str] = field(default_factory=dict[Place, str])
    """The names of the other hosts, by where they listen."""

    @staticmethod
    def open() -> "Reach":
        """Listen, on the first rank of a host, at the address by which it meets the others."""
        address = own_address(os.environ.get("MASTER_ADDR", "localhost"))
        if not address or ip_address(address).is_loopback:
            return Reach()
        if os.environ.get("LOCAL_RANK") != "0":
            return Reach(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return Reach(address, socket.create_server((address, 0), family=family, backlog=_KNOCKS))

    @property
    def place(self) -> Place | None:
        """Where this rank listens, if it does."""
        if self.listener is None:
            return None
        address, port, *_ = self.listener.getsockname()
        return address, port

    def learn(self, hosts: Mapping[Place, str]) -> None:
        """Take in the names of all hosts, by where they listen."""
        self.hosts = {place: host for place, host in hosts.items() if place[0] != self.address}

    def lost(self) -> list[str]:
        """Return the hosts that do not answer now."""
        if not self.hosts:
            return []
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            answers = pool.map(_answers, self.hosts)
            return [host for host, answer in zip(self.hosts.values(), answers, strict=True) if not answer]

    def verdict(self) -> str:
        """Return which hosts do not answer, to be put at the end of a sentence; nothing if all do."""
        lost = self.lost()
        if len(lost) == len(self.hosts) > 1:
            return f"; no other host can be reached from {socket.gethostname()}"
        return f"; host{'s' * (len(lost) > 1)} {', '.join(lost)} cannot be reached" if lost else ""

    def close(self) -> None:
        """Listen no more."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None


def _answers(place: Place) -> bool:
    try:
        socket.create_connection(place, PATIENCE_SECONDS).close()
    except ConnectionRefusedError:
        return True  # The rank is gone, its host is not.
    except OSError:
        return False
    return True
