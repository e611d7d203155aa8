"""Reachable hosts are distinguished from unreachable ones, whatever their ranks do."""

import errno
import socket
from types import SimpleNamespace

import pytest

from graphpipe.errors import PeerStalled
from graphpipe.run.meeting.host_address import own_address
from graphpipe.run.meeting.peer_loss import translate_loss
from graphpipe.run.meeting.reachability import Place, Reachability

GONE, GONE_TOO = ("192.0.2.1", 9), ("192.0.2.2", 9)


@pytest.fixture(autouse=True)
def one_host_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def refuse(place: Place, timeout: float) -> socket.socket:
        if place in (GONE, GONE_TOO):
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return connect(place, timeout)

    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def listener() -> socket.socket:
    # Connections are not accepted, as on a rank that is stopped.
    return socket.create_server(("127.0.0.1", 0))


def test_a_host_whose_rank_is_stopped_or_dead_is_not_cut_off(listener: socket.socket) -> None:
    place = listener.getsockname()
    reach = Reachability(hosts={place: "node1", GONE: "node2"})
    assert reach.lost() == ["node2"]
    assert reach.verdict() == "; host node2 cannot be reached"
    listener.close()
    assert reach.lost() == ["node2"]


def test_a_host_that_cannot_reach_any_other_reports_itself() -> None:
    assert Reachability(hosts={GONE: "node1", GONE_TOO: "node2"}).verdict() == (
        f"; no other host can be reached from {socket.gethostname()}"
    )
    assert Reachability(hosts={GONE: "node1"}).verdict() == "; host node1 cannot be reached"
    assert Reachability().verdict() == ""


def test_a_stall_names_the_host() -> None:
    reach = Reachability(hosts={GONE: "node1"})
    expected = "rank 3 did not answer within the time limit, host a; host node1 cannot be reached"
    with pytest.raises(PeerStalled, match=expected), translate_loss("rank 3", lambda: ", host a" + reach.verdict()):
        raise RuntimeError("Timed out waiting 3000ms for recv operation to complete")


@pytest.mark.parametrize(("rank", "listens"), [("0", True), ("1", False)])
def test_one_rank_of_a_host_listens_at_the_rendezvous_address(
    rank: str, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "graphpipe.run.meeting.reachability.ip_address", lambda address: SimpleNamespace(is_loopback=False)
    )
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    reach = Reachability.open()
    assert (reach.place is not None) == listens
    assert (reach.place or ("127.0.0.1", 0))[0] == "127.0.0.1"
    reach.learn({("127.0.0.1", 9): "here", GONE: "node1"})
    assert reach.hosts == {GONE: "node1"}
    reach.close()
    assert reach.place is None


def test_ranks_of_one_machine_do_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    for host in ("127.0.0.1", "localhost", "no.such.invalid"):
        monkeypatch.setenv("MASTER_ADDR", host)
        assert Reachability.open().place is None
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no.such.invalid") == ""
