"""Messages go one way each.

Gloo's thread used to spin on the lock of a connection that both directions shared, while a send held it: two ranks of
a small model took 54 ms a step, and 44 ms with a connection per direction.
"""

from pathlib import Path

import pytest
from run_p2p_groups import MESSAGES, talk
from run_ranks import run_ranks, values

from graphpipe.run.comm.world import join


def test_messages_come_whole_and_the_two_directions_of_a_pair_share_no_connection(tmp_path: Path) -> None:
    for rank, found in enumerate(values(run_ranks(talk, 3, tmp_path))):
        others = {str(other) for other in range(3) if other != rank}
        assert found["come"] == {other: [100 * int(other) + number for number in range(MESSAGES)] for other in others}
        assert found["apart"]


def test_a_rank_alone_has_nobody_to_send_to() -> None:
    with pytest.raises(AssertionError, match="talks to nobody"):
        join("cpu", 30).messages  # noqa: B018
