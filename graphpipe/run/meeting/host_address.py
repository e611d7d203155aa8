"""The address and the network interface by which this host reaches the other ranks."""

import os
import socket

import psutil

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The environment variable that names the interface of gloo's connections."""


def own_address(host: str) -> str:
    """Return the address from which this machine reaches another (or itself), or an empty string if it cannot.

    Nothing is sent: connecting a datagram socket only chooses its own address.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """Return the name of the interface with this address, or an empty string."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            return name
    return ""


def bind_gloo_to_route_of(host: str) -> None:
    """Make gloo listen on the interface that leads to the rendezvous host, unless the user chose an interface.

    By default gloo listens on the address of the machine's own name. That may be the loopback interface, where other
    machines cannot reach it, or the network where all ranks are on one machine.
    """
    if INTERFACE not in os.environ and (name := interface_of(own_address(host))):
        os.environ[INTERFACE] = name
