"""Torch's errors about a lost peer become errors of this package. Errors of the set-up of a machine name no peer."""

import pytest

from graphpipe.errors import InvalidInput, PeerLost, PeerStalled
from graphpipe.run.meeting.peer_loss import translate_loss

SYSTEM = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL 2.29\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\n"
)
REMOTE = (
    "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL version 2.29\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer node7<48211>"
)
CUDA = "NCCL error: ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure "
USAGE = "NCCL error: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:1214", PeerLost),
        ("writev: Broken pipe", PeerLost),
        (REMOTE, PeerLost),
        (SYSTEM + "socketStartConnect: Connect to 10.0.0.7<40001> failed : Connection refused", PeerLost),
        ("Timed out waiting 3000ms for recv operation to complete", PeerStalled),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, Timeout(ms)=30000)", PeerStalled),
        ("CUDA out of memory", RuntimeError),
        (SYSTEM + "Call to ibv_reg_mr failed with error Cannot allocate memory", RuntimeError),
        (CUDA + "700 'an illegal memory access was encountered'", RuntimeError),
        (USAGE + "Invalid config blocking attribute value", RuntimeError),
    ],
)
def test_an_error_of_torch_about_a_lost_peer_names_the_rank(text: str, kind: type[Exception]) -> None:
    with pytest.raises(RuntimeError) as caught, translate_loss("rank 3"):
        raise RuntimeError(text)
    assert type(caught.value) is kind
    if kind is not RuntimeError:
        assert str(caught.value).startswith("rank 3 d")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            SYSTEM + "Bootstrap : no socket interface found",
            r"NCCL_SOCKET_IFNAME: NCCL finds no .* \(Bootstrap : no socket interface found\)\. Unset it.* one of .*lo",
        ),
        ("[enforce fail at tcp/device.cc:56] Unable to find address for: eth7", "GLOO_SOCKET_IFNAME: .* one of .*lo"),
        (
            USAGE + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
            r"LOCAL_RANK: two ranks compute on the same GPU \(Duplicate GPU detected : rank 1 and rank 0 .*LOCAL_RANK",
        ),
        (CUDA + "217 'peer access is not supported between these two devices'", "NCCL_P2P_DISABLE=1"),
        (CUDA + "35 'CUDA driver version is insufficient for CUDA runtime version'", "Install a newer driver"),
        (SYSTEM + "Error while creating shared memory segment /dev/shm/nccl-1 (size 9637888)", "--shm-size=1g"),
        (USAGE + "Mismatched NCCL version detected : rank 0 222.7 rank 1 229.2", "the same torch on every host"),
    ],
)
def test_an_error_of_the_set_up_says_what_to_change(text: str, expected: str) -> None:
    """ "socket" in the explanation that NCCL gives of every system error, and "peer", were taken for a dead rank."""
    with pytest.raises(InvalidInput, match=expected), translate_loss("rank 3"):
        raise RuntimeError(text)
