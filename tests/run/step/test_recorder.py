"""What a rank is at is known whether or not anybody records it."""

from datetime import timedelta

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from graphpipe.run.comm.world import World
from graphpipe.run.step.recorder import Doing, Recorder


def recorder(*, on: bool) -> Recorder:
    world = World(rank=0, size=1, device=torch.device("cpu"), timeout=timedelta(seconds=1))
    return Recorder(world=world, on=on, stages=("text",))


@pytest.mark.parametrize("on", [False, True])
def test_what_is_under_way_is_known_and_stays_known_after_an_error(*, on: bool) -> None:
    it = recorder(on=on)
    it.begin()
    with it.span(0, "F", 0, 3):
        assert it.doing == Doing("F", 0, 3)
    assert it.doing is None
    with pytest.raises(RuntimeError), it.span(0, "B", 0, 3):
        raise RuntimeError
    assert it.doing == Doing("B", 0, 3)
    it.end((0,))  # until then the seconds of what was noted need not be known
    assert [(span.kind, span.micro_batch) for span in it.spans] == ([("F", 3)] if on else [])


@pytest.mark.parametrize("on", [False, True])
def test_spans_are_named_to_the_profiler_while_it_looks(*, on: bool) -> None:
    it = recorder(on=on)
    with it.span(0, "F", 0, 1):
        pass
    with profile(activities=[ProfilerActivity.CPU]) as profiler, it.span(0, "F", 0, 2):
        pass
    names = [event.name for event in profiler.events()]
    assert "forward text micro-batch 2" in names
    assert "forward text micro-batch 1" not in names
