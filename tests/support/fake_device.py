"""A kind of device from outside the package, which computes on the host and notes what it is asked for."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from graphpipe.devices.cpu import CPU
from graphpipe.devices.device_kind import DeviceClock, DeviceKind, Stream
from graphpipe.graph import Precision


class FakeKind(DeviceKind):
    """Devices whose work the host does.

    Args:
        name: torch's type of device.
    """

    backend = "fakeccl"
    matches_by_order = True
    on_host = False
    closing_waits = True
    outlives_peers = False
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    activities = CPU.activities
    where_to_look = "fake-smi"
    visible_variable = "FAKE_VISIBLE_DEVICES"

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: Counter[str] = Counter()

    def count(self) -> int:
        return 2

    def built_for(self) -> str:
        return "Fake 1.0"

    def select(self, device: torch.device) -> None:
        self.asked[f"select {device}"] += 1

    def synchronize(self, device: torch.device | None = None) -> None:
        self.asked["synchronize"] += 1

    def describe(self, device: torch.device) -> str:
        return f"Fake {device.index}"

    def backend_available(self) -> bool:
        return True

    def versions(self, *, used: bool) -> Mapping[str, str]:
        return {"fake": "1.0", "fakeccl": "2.7" if used else "none"}

    def new_stream(self, device: torch.device) -> Stream:
        self.asked["stream"] += 1
        return CPU.new_stream(device)

    def current_stream(self, device: torch.device) -> Stream:
        return CPU.current_stream(device)

    def clock(self, device: torch.device) -> DeviceClock:
        self.asked["clock"] += 1
        return CPU.clock(device)

    def held_bytes(self, device: torch.device) -> float:
        return 5.0

    def peak_bytes(self, device: torch.device) -> float:
        return 7.0

    def reset_peak(self, device: torch.device) -> None:
        self.asked["reset peak"] += 1

    def available_bytes(self, device: torch.device) -> float:
        return 9.0

    def total_bytes(self, device: torch.device) -> float:
        return 10.0

    def frequency(self, device: torch.device) -> float | None:
        return 2e9

    def host_buffer(self, count: int) -> Tensor:
        self.asked["host buffer"] += 1
        return CPU.host_buffer(count)

    def seed(self, number: int) -> None:
        self.asked["seed"] += 1

    def random_state(self, device: torch.device) -> Tensor | None:
        self.asked["random state"] += 1
        return torch.zeros(1)

    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        assert torch.equal(state, torch.zeros(1))
        self.asked["random state set"] += 1
