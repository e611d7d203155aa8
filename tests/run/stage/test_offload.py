"""A stage that offloads saved tensors trains, bit for bit, like a stage that keeps them, in any mixture."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, cast, final

import pytest
import torch
from latin_square import latin_square
from run_chain import INTERLEAVED, train_chain, train_mixed_in_bf16
from run_ranks import run_ranks, values
from torch import Tensor, nn

from graphpipe.costs import Recompute
from graphpipe.devices.device_kind import Stream
from graphpipe.errors import InvalidInput
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.run.comm.offload_messages import OffloadMessages
from graphpipe.run.comm.world import World
from graphpipe.run.device.stage_streams import HostStreams
from graphpipe.run.stage.offload import Offloading

TOGETHER = [(["a", "b", "c"], [0], 2), (["d"], [1], 2)]
CUTS = {"interleaved": INTERLEAVED, "together": TOGETHER}
MIXTURES: list[tuple[str, dict[int, Recompute], dict[int, tuple[str, ...]]]] = [
    ("interleaved", {}, {0: ("a",), 1: ("b",), 2: ("c",), 3: ("d",)}),
    ("interleaved", {0: "full", 1: ("b",)}, {2: ("c",)}),
    ("together", {0: ("a", "c")}, {0: ("b",)}),
    ("together", {0: ("b",)}, {0: ("a", "c")}),
    ("together", {1: "full"}, {0: ("a", "b", "c")}),
]

NEIGHBOURS = {1: (0,), 2: (1,)}


@cache
def keeping(cut: str, schedule: str) -> dict[str, Any]:
    return train_chain(CUTS[cut], schedule)


@pytest.mark.parametrize(
    ("cut", "recompute", "offload", "schedule"), latin_square(MIXTURES, ["1f1b", "gpipe", "zb-h1", "zb-auto"])
)
def test_any_mixture_has_the_gradients_of_keeping(
    cut: str, recompute: dict[int, Recompute], offload: dict[int, tuple[str, ...]], schedule: str
) -> None:
    kept, mixed = keeping(cut, schedule), train_chain(CUTS[cut], schedule, recompute, offload=offload)
    assert mixed["losses"] == kept["losses"]
    for what in ("gradients", "state"):
        assert all(torch.equal(mixed[what][name], tensor) for name, tensor in kept[what].items())
    kinds = {span["kind"] for span in mixed["trace"]["spans"]}
    assert {"evict", "fetch"} <= kinds
    # Zero-bubble schedules split the backwards of the other stages only: a half would hold what came back.
    halved = {span["stage"] for span in mixed["trace"]["spans"] if span["kind"] == "W"}
    keeps = {*range(len(CUTS[cut]))} - recompute.keys() - offload.keys()
    assert halved <= keeps
    assert bool(halved) == (schedule == "zb-h1" and bool(keeps)) or schedule == "zb-auto"


@final
class LoggedStream(Stream):
    """Notes what is queued, as a GPU's stream would get it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> str:
        return self.name

    def wait(self, mark: object) -> None:
        self.log.append(f"{self.name} waits for {mark}")

    def hold(self, tensors: Iterable[Tensor]) -> None:
        pass


def test_only_the_backward_waits_for_the_copy_back() -> None:
    # The copy was awaited where it began, so the task before the backward waited too, and hid nothing.
    log: list[str] = []
    streams = HostStreams(LoggedStream("out", log), LoggedStream("back", log))
    layer = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    owner = Offloading("s0", torch.device("cpu"), streams, LoggedStream("computing", log))
    offloaded = owner.begin(0, layer)
    with handle_saved_tensors(offloaded):
        loss = owner.compute(layer, (torch.randn(2, 4),)).sum()
    offloaded.offload([])
    offloaded.fetch()
    # It begins once the tasks so far have run, because it takes memory that the backward frees.
    assert log == ["out waits for computing", "back waits for computing", "back waits for out"]
    loss.backward()
    assert log[3:] == ["computing waits for back"]


def test_two_ranks_train_like_one_in_bf16(tmp_path: Path) -> None:
    recompute: dict[int, Recompute] = {0: ("a",)}
    offload = {0: ("b", "c")}
    kept = train_mixed_in_bf16(TOGETHER, {}, {})
    assert train_mixed_in_bf16(TOGETHER, recompute, offload)["losses"] == kept["losses"]
    for rank in values(run_ranks(train_mixed_in_bf16, 2, tmp_path, TOGETHER, recompute, offload)):
        assert rank["losses"] == kept["losses"]
        assert all(torch.equal(tensor, kept["state"][name]) for name, tensor in rank["state"].items())


def train_on_neighbours() -> dict[str, Any]:
    """Train two stages that offload to each other, and note how many tensors this rank stored for the other."""
    held: list[int] = []
    send_back = OffloadMessages.send_back

    def noted(self: OffloadMessages, replica: tuple[int, int], micro_batch: int, peer: int) -> None:
        held.append(len(self.stored[replica, micro_batch]))
        send_back(self, replica, micro_batch, peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OffloadMessages, "send_back", noted)
        found = train_chain(INTERLEAVED, "1f1b", {0: ("a",)}, offload={1: ("b",), 2: ("c",)}, offload_to=NEIGHBOURS)
    return found | {"held": held}


def test_neighbours_that_hold_for_each_other_train_like_one_that_keeps(tmp_path: Path) -> None:
    kept = keeping("interleaved", "1f1b")
    assert train_on_neighbours()["losses"] == kept["losses"]
    for rank in values(run_ranks(train_on_neighbours, 2, tmp_path)):
        assert rank["losses"] == kept["losses"]
        assert all(torch.equal(tensor, kept["state"][name]) for name, tensor in rank["state"].items())
        assert len(rank["held"]) >= 2
        assert all(rank["held"])


def test_a_neighbour_is_not_sent_other_sizes_in_one_step() -> None:
    # Nothing is sent here: the sizes of an earlier micro-batch are known already.
    messages = OffloadMessages(cast("World", None), sizes={(0, 0): (8,)})
    with pytest.raises(
        InvalidInput,
        match=r"micro-batch 2 saves 4 B in 1 tensors, which are offloaded .*, another one of the step 8 B in 1",
    ):
        messages.offload((0, 0), 2, [torch.zeros(4, dtype=torch.uint8)], peer=1)
