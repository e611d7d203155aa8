"""Receives begin early: in order, each once, within a limit of buffer bytes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule import StageTask, Transfer
from graphpipe.schedule.early_receives import EarlyReceives


def transfer(number: int) -> Transfer:
    return Transfer(
        edge=0,
        direction="forward",
        source_device=0,
        target_device=1,
        samples=SampleRange(number, number + 1),
        source_task=StageTask("F", 0, number),
        target_task=StageTask("F", 1, number),
    )


@dataclass
class Receiver:
    """Records the numbers of the transfers that begin, counted from 0."""

    sizes: list[int]
    room: int
    begun: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.transfers = [transfer(number) for number in range(len(self.sizes))]
        self.early = EarlyReceives(begin=self._begin, size_of=lambda it: self.sizes[it.samples.start], room=self.room)

    def _begin(self, it: Transfer) -> int:
        self.begun.append(it.samples.start)
        return self.sizes[it.samples.start]

    def start(self) -> None:
        self.early.start(self.transfers)

    def reach(self, number: int) -> None:
        self.early.reach(self.transfers[number])

    def used(self, number: int) -> None:
        self.early.used(self.sizes[number])


def test_receives_fill_the_room_and_the_next_one_begins_when_a_buffer_is_used() -> None:
    it = Receiver([4, 4, 4, 4], room=9)
    it.start()
    assert it.begun == [0, 1]
    it.reach(0)
    assert it.begun == [0, 1]  # it has begun already
    it.used(0)
    assert it.begun == [0, 1, 2]


@pytest.mark.parametrize("room", [0, 3])
def test_a_receive_without_room_begins_when_its_message_is_needed(room: int) -> None:
    it = Receiver([4, 4], room=room)
    it.start()
    assert it.begun == []
    it.reach(0)
    assert it.begun == [0]
    it.used(0)
    assert it.begun == [0]


def test_a_small_receive_does_not_overtake_a_large_one() -> None:
    it = Receiver([5, 1], room=4)
    it.start()
    assert it.begun == []
    it.reach(0)
    it.used(0)
    assert it.begun == [0, 1]


def test_a_step_after_an_interrupted_one_begins_with_its_first_receive() -> None:
    it = Receiver([4, 4, 4], room=8)
    it.start()
    it.begun.clear()
    it.start()
    assert it.begun == [0, 1]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 20), st.integers(0, 3))
def test_each_receive_begins_once_in_order_and_in_time_and_buffers_stay_within_the_limit(
    sizes: list[int], room: int, lag: int
) -> None:
    # A buffer is used when `lag` later receives have been reached.
    it = Receiver(sizes, room=room)
    it.start()
    for number in range(len(sizes)):
        it.reach(number)
        assert number in it.begun
        waiting = sum(sizes[one] for one in it.begun) - sum(sizes[: max(0, number - lag)])
        assert waiting <= max(room, sum(sizes[max(0, number - lag) : number + 1]))
        if number >= lag:
            it.used(number - lag)
    assert it.begun == [*range(len(sizes))]
