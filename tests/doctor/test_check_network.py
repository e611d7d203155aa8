"""`graphpipe doctor` checks that processes of this machine can reach each other."""

import socket

import pytest

from graphpipe.doctor.check_network import check_host_name, check_loopback, check_network


def test_processes_of_this_machine_can_communicate() -> None:
    assert [finding.name for finding in check_network()] == ["loopback", "host name"]
    assert check_loopback(0).status == "fine"


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_loopback(port)
    assert (finding.status, finding.what) == ("problem", f"port {port} cannot be used: Address already in use")
    assert finding.remedy == "Choose another, or 0 for any free one."
    assert check_loopback(port).status == "fine"  # the port is free again


def test_a_number_that_is_not_a_port_is_named() -> None:
    assert check_loopback(70000).what == "70000 is not a port"


def test_a_host_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> str:
        raise socket.gaierror("unknown")

    assert check_host_name("localhost").what == "'localhost' is 127.0.0.1"
    monkeypatch.setattr(socket, "gethostbyname", fail)
    finding = check_host_name("odd")
    assert (finding.status, finding.what) == ("warning", "'odd' has no address")
    assert "/etc/hosts" in finding.remedy
