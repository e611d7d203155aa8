"""Checks that processes of this machine can reach each other."""

import os
import socket

from graphpipe.doctor.finding import Finding

LOOPBACK = "127.0.0.1"
TIMEOUT_SECONDS = 5.0


def check_network(port: int = 0) -> list[Finding]:
    """Check the loopback interface and the host name.

    Args:
        port: where local ranks are to meet; 0 is any free port.
    """
    return [check_loopback(port), check_host_name(socket.gethostname())]


def check_loopback(port: int) -> Finding:
    """Check that data sent to a port of the loopback interface arrives."""
    try:
        with socket.create_server((LOOPBACK, port)) as server:
            server.settimeout(TIMEOUT_SECONDS)
            bound_port = server.getsockname()[1]
            with socket.create_connection((LOOPBACK, bound_port), TIMEOUT_SECONDS) as client:
                other, _ = server.accept()
                with other:
                    client.sendall(b"graphpipe")
                    other.settimeout(TIMEOUT_SECONDS)
                    received = other.recv(9)
    except OverflowError:
        return _no_port(f"{port} is not a port", "Ports are 0 (any free one) to 65535.")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if port:
            return _no_port(f"port {port} cannot be used: {reason}", "Choose another, or 0 for any free one.")
        return _no_port(f"no port of {LOOPBACK} can be used: {reason}", "Allow local connections in the firewall.")
    if received != b"graphpipe":
        return _no_port(f"port {bound_port} of {LOOPBACK} loses what is sent to it", "Look at the firewall.")
    return Finding(name="loopback", status="fine", what=f"port {bound_port} of {LOOPBACK} listens and answers")


def check_host_name(name: str) -> Finding:
    """Check that the host name has an address. Gloo looks it up unless an interface is named."""
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Finding(
            name="host name",
            status="warning",
            what=f"'{name}' has no address",
            remedy="torchrun on several hosts needs one: add it to /etc/hosts, or set GLOO_SOCKET_IFNAME.",
        )
    return Finding(name="host name", status="fine", what=f"'{name}' is {address}")


def _no_port(what: str, remedy: str) -> Finding:
    return Finding(name="loopback", status="problem", what=what, remedy=remedy)
