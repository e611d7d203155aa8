"""A rank computes on the GPU that its launcher has given it, and two ranks never share one by chance."""

import pytest
import torch
from fake_device import FakeKind

from graphpipe.devices import registry
from graphpipe.devices.cpu import CPU
from graphpipe.errors import InvalidInput
from graphpipe.run.meeting.choose_device import choose_device

LAUNCHERS = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeKind:
    """Machines with 8 GPUs, started without a launcher."""
    kind = FakeKind("xpu")
    kind.count = lambda: 8
    monkeypatch.setattr(registry.DEVICE_KINDS, "_items", {"cpu": CPU, "xpu": kind})
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return kind


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_numbers_the_ranks_of_a_machine(
    launcher: str, gpus: FakeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under srun without torchrun, all ranks took the first GPU."""
    monkeypatch.setenv(launcher, "5")
    assert choose_device(None, 16) == torch.device("xpu:5")
    assert choose_device("xpu", 16) == torch.device("xpu:5")
    assert choose_device("xpu:2", 16) == torch.device("xpu:2")
    assert gpus.asked["select xpu:5"] == 2


def test_a_rank_that_sees_one_gpu_takes_it(gpus: FakeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's --gpus-per-task shows every task one GPU, whose number there is 0. It was refused."""
    gpus.count = lambda: 1
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(None, 8) == torch.device("xpu:0")
    monkeypatch.delenv("LOCAL_RANK")
    assert choose_device(None, 8) == torch.device("xpu:0")


def test_ranks_that_nobody_numbers_are_refused(gpus: FakeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"LOCAL_RANK: there are 8 ranks and 8 XPU devices here, and nothing says"):
        choose_device(None, 8)
    assert choose_device(None, 1) == torch.device("xpu:0")
    assert choose_device("cpu", 8) == torch.device("cpu")
    monkeypatch.setenv("SLURM_LOCALID", "8")
    with pytest.raises(InvalidInput, match="this rank would compute on xpu:8, the machine has 8 XPU devices"):
        choose_device(None, 16)
