"""The current work of a rank is known whether or not it is recorded."""

from datetime import timedelta

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from graphpipe.run.comm.world import World
from graphpipe.run.worker.recorder import CurrentWork, Recorder


def recorder(*, on: bool) -> Recorder:
    world = World(rank=0, size=1, device=torch.device("cpu"), timeout=timedelta(seconds=1))
    return Recorder(world=world, on=on, stages=("text",))


@pytest.mark.parametrize("on", [False, True])
def test_current_work_is_known_also_after_an_error(*, on: bool) -> None:
    it = recorder(on=on)
    it.begin()
    with it.span(0, "F", 0, 3):
        assert it.doing == CurrentWork("F", 0, 3)
    assert it.doing is None
    with pytest.raises(RuntimeError), it.span(0, "B", 0, 3):
        raise RuntimeError
    assert it.doing == CurrentWork("B", 0, 3)
    it.end((0,))  # the seconds of recordings are known only from here on
    assert [(span.kind, span.micro_batch) for span in it.spans] == ([("F", 3)] if on else [])


@pytest.mark.parametrize("on", [False, True])
def test_spans_are_named_to_the_profiler_while_it_is_on(*, on: bool) -> None:
    it = recorder(on=on)
    with it.span(0, "F", 0, 1):
        pass
    with profile(activities=[ProfilerActivity.CPU]) as profiler, it.span(0, "F", 0, 2):
        pass
    events = profiler.events()
    assert events is not None
    names = [event.name for event in events]
    assert "forward text micro-batch 2" in names
    assert "forward text micro-batch 1" not in names
