"""Each direction of a pair of ranks has its own group.

Gloo's thread used to spin on the lock of a connection that both directions shared, while a send held it: two ranks of
a small model took 54 ms a step, and 44 ms with a connection per direction.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from run_p2p_groups import MESSAGES, exchange
from run_ranks import run_ranks, values

from graphpipe.run.comm.p2p_groups import P2PGroups
from graphpipe.run.comm.world import join


def test_messages_arrive_intact_and_each_direction_has_its_own_connection(tmp_path: Path) -> None:
    for rank, found in enumerate(values(run_ranks(exchange, 3, tmp_path))):
        others = {str(other) for other in range(3) if other != rank}
        assert found["come"] == {other: [100 * int(other) + number for number in range(MESSAGES)] for other in others}
        assert found["together"] == found["come"]
        assert found["apart"]


def test_a_single_rank_has_no_p2p_groups() -> None:
    with pytest.raises(AssertionError, match="has no peers"):
        join("cpu", 30).p2p  # noqa: B018


def test_all_messages_of_a_pair_use_the_communicator_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100, torch warned that NCCL made one more for messages of one value; those of several had the group's."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dist, "P2POp", lambda start, tensor, *, group, group_peer, tag: (start, group, group_peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda operations: started.extend(operations) or [*operations])
    there, back = SimpleNamespace(), SimpleNamespace()  # any other call would not be found
    groups = P2PGroups(
        rank=1, up=cast(Any, there), down=cast(Any, back), pairs=cast(Any, {(1, 3): "to 3", (3, 1): "from 3"})
    )
    groups.send(torch.zeros(2), 3)
    groups.receive(torch.zeros(2), 3)
    groups.together([torch.zeros(2), torch.zeros(3)], 3, sends=True)
    assert started == [(dist.isend, "to 3", 1), (dist.irecv, "from 3", 1)] + [(dist.isend, "to 3", 1)] * 2
