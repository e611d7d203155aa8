"""Torch's errors about a lost peer become errors of this package."""

import pytest

from graphpipe.errors import PeerLost, PeerStalled
from graphpipe.run.comm.world import translate_loss


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:1214", PeerLost),
        ("writev: Broken pipe", PeerLost),
        ("Timed out waiting 3000ms for recv operation to complete", PeerStalled),
        ("CUDA out of memory", RuntimeError),
    ],
)
def test_an_error_of_torch_about_a_lost_peer_names_the_rank(text: str, kind: type[Exception]) -> None:
    with pytest.raises(RuntimeError) as caught, translate_loss("rank 3"):
        raise RuntimeError(text)
    assert type(caught.value) is kind
    if kind is not RuntimeError:
        assert str(caught.value).startswith("rank 3 d")
