"""The listening TCP sockets of a process's network, read from /proc."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: str
    """Of the socket, which is an open file of its owners."""


def listeners(pid: int | str = "self") -> list[Listener]:
    """Return all listening sockets in the network namespace of a process."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [Listener(*_place(row[1]), row[9]) for row in rows if row[3] == "0A"]


def _place(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    # Words of four bytes, each a little-endian number, and the port.
    host, _, port = text.partition(":")
    words = [host[start : start + 8] for start in range(0, len(host), 8)]
    return ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words)), int(port, 16)
