"""Where ranks meet: a store that listens at the address it was given, and nowhere else."""

import errno
import ipaddress
import socket
import sys
from datetime import timedelta

import torch.distributed as dist

LOOPBACK = "127.0.0.1"


def bound_store(rank: int, host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """Return the store that ranks meet at; rank 0 hosts it. Torch's own would listen on every interface.

    Args:
        rank: this one.
        host: an IP address of rank 0's machine.
        port: free there.
        timeout: how long to wait for rank 0.

    Raises:
        RuntimeError: the port is in use (EADDRINUSE), or the address is none of this machine's.
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
    """True for an IP address; a name may mean another address on every machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def loopback_interface() -> str:
    """Return the name under which this system knows the loopback interface."""
    return "lo0" if sys.platform == "darwin" else "lo"
