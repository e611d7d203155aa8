"""The rendezvous store of the ranks, which listens only at the address it was given."""

import errno
import ipaddress
import socket
import sys
from datetime import timedelta

import torch.distributed as dist

LOOPBACK = "127.0.0.1"


def bound_store(rank: int, host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """Return the rendezvous store, hosted by rank 0. Torch's default store would listen on every interface.

    Args:
        rank: this one.
        host: an IP address of rank 0's machine.
        port: free there.
        timeout: how long to wait for rank 0.

    Raises:
        RuntimeError: the port is in use (EADDRINUSE), or the address is not of this machine.
    """
    if rank:
        return dist.TCPStore(host, port, timeout=timeout)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise RuntimeError(f"{'EADDRINUSE: ' * (error.errno == errno.EADDRINUSE)}{error}") from error
    return dist.TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def is_address(host: str) -> bool:
    """True for an IP address. A host name may resolve differently on every machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def loopback_interface() -> str:
    """Return the system's name of the loopback interface."""
    return "lo0" if sys.platform == "darwin" else "lo"
