"""This host's place in the network: the address and the interface by which it meets the other ranks."""

import os
import socket

import psutil

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The environment variable that names the interface of gloo's connections."""


def own_address(host: str) -> str:
    """Return the address from which this machine talks to another (or to itself), or nothing if there is no way to it.

    Nothing is sent: a datagram socket that is connected knows its own end.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """Return the name of the interface with this address, or nothing."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    return ""


def stay_on_the_way_to(host: str) -> None:
    """Keep gloo's connections on the interface that leads to where the ranks meet, unless the user chose one.

    Otherwise gloo looks up the machine's own name and listens on its address: off the network where ranks meet on the
    loopback interface, and on the loopback interface where a machine's name leads there.
    """
    if INTERFACE not in os.environ and (name := interface_of(own_address(host))):
        os.environ[INTERFACE] = name
