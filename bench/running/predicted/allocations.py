"""The most memory that torch had allocated in a trace of its profiler: on the device, and of the node for it."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.profiler import record_function

from graphpipe.run.stage.offload import OffloadedTensors

HOST = "memory of the node"


@contextmanager
def marking_host_memory() -> Generator[None]:
    """Mark in the trace which allocations are memory of the node. On a CPU, torch allocates both alike."""
    allocate = OffloadedTensors.host_buffer

    def marked(self: OffloadedTensors, count: int) -> Tensor:
        with record_function(HOST):
            return allocate(self, count)

    with patch.object(OffloadedTensors, "host_buffer", marked):
        yield


def most_allocated(events: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the most bytes on the device, and the most of the node, that were allocated during a trace.

    What was there before the trace began does not count, and neither does its end.
    """
    events = [*events]
    marks = [(each["ts"], each["ts"] + each["dur"]) for each in events if each.get("name") == HOST]
    found = sorted((each for each in events if each.get("name") == "[memory]"), key=lambda each: each["ts"])
    held: dict[int, tuple[float, bool]] = {}  # bytes, and whether they are the node's
    total, most = [0.0, 0.0], [0.0, 0.0]
    for moment, address, count in ((each["ts"], each["args"]["Addr"], each["args"]["Bytes"]) for each in found):
        if count > 0:
            of_node = any(start <= moment <= end for start, end in marks)
            held[address] = float(count), of_node
            total[of_node] += count
        elif address in held:
            freed, of_node = held.pop(address)
            total[of_node] -= freed
        most = [max(pair) for pair in zip(most, total, strict=True)]
    return most[0], most[1]
