"""Who listens where, as Linux tells it."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: str
    """Of the socket: its owners have it among their open files."""


def listeners(pid: int | str = "self") -> list[Listener]:
    """Return all that listen in the network that a process is in."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [Listener(*_place(row[1]), row[9]) for row in rows if row[3] == "0A"]


def _place(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    # Words of four bytes, each as a number of this machine (little-endian), and the port.
    host, _, port = text.partition(":")
    words = [host[start : start + 8] for start in range(0, len(host), 8)]
    return ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words)), int(port, 16)
