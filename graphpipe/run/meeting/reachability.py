"""Finds which hosts can still be reached, after a wait for another rank has timed out.

Ranks wait for each other in chains. When a host is cut off, all ranks time out together, and most of them were waiting
for a rank on a healthy host. So the first rank of every host keeps a listening socket. As long as the host runs and is
connected, its operating system accepts connections, even if the rank is busy, stopped or dead.
"""

import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address

from graphpipe.run.meeting.host_address import own_address
from graphpipe.torchrun import local_rank

CONNECT_SECONDS = 2.0
_KNOCKS = 1024
"""The backlog of connections, which are never accepted."""

Place = tuple[str, int]
"""An address and a port."""


@dataclass(slots=True)
class Reachability:
    """This host's socket, and the addresses of the other hosts' sockets. Empty if all ranks are on one machine."""

    address: str = ""
    """The address by which this host reaches the others."""
    listener: socket.socket | None = None
    hosts: dict[Place, str] = field(default_factory=dict[Place, str])
    """The names of the other hosts, by the place where they listen."""

    @staticmethod
    def open() -> "Reachability":
        """Start to listen, on the first rank of a host, at the address by which it reaches the others."""
        address = own_address(os.environ.get("MASTER_ADDR", "localhost"))
        if not address or ip_address(address).is_loopback:
            return Reachability()
        if local_rank() != 0:
            return Reachability(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return Reachability(address, socket.create_server((address, 0), family=family, backlog=_KNOCKS))

    @property
    def place(self) -> Place | None:
        """Where this rank listens, or None."""
        if self.listener is None:
            return None
        address, port, *_ = self.listener.getsockname()
        return address, port

    def learn(self, hosts: Mapping[Place, str]) -> None:
        """Set the names of all hosts, by the place where they listen."""
        self.hosts = {place: host for place, host in hosts.items() if place[0] != self.address}

    def lost(self) -> list[str]:
        """Return the hosts that do not answer."""
        if not self.hosts:
            return []
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            answers = pool.map(_answers, self.hosts)
            return [host for host, answer in zip(self.hosts.values(), answers, strict=True) if not answer]

    def verdict(self) -> str:
        """Return the end of a sentence that names the hosts that do not answer; empty if all answer."""
        lost = self.lost()
        if len(lost) == len(self.hosts) > 1:
            return f"; no other host can be reached from {socket.gethostname()}"
        return f"; host{'s' * (len(lost) > 1)} {', '.join(lost)} cannot be reached" if lost else ""

    def close(self) -> None:
        """Stop listening."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None


def _answers(place: Place) -> bool:
    try:
        socket.create_connection(place, CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True  # the rank is gone, but its host answers
    except OSError:
        return False
    return True
