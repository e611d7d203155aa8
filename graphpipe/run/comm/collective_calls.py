"""Waiting for another rank's work as long as it takes, and for a rank that is gone no longer than the limit allows."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from graphpipe.run.comm.world import World

_STILL_AT_IT = "still at it"
_WITHIN_LIMIT = 4
"""How often a rank that works speaks within the limit of those that wait."""


def patiently(world: World, work: Callable[[], object]) -> list[Any]:
    """Do this rank's work; return what every rank's returned, in rank order. Every rank must call this.

    The time limit is for a rank that is silent. One that works speaks up again and again, from a thread:

        rank 0     checks the files of a checkpoint .............. it is good
        its thread         still at it      still at it
        rank 1     waits ............ waits .......... waits ....

    A process that is killed or stopped speaks no more, and is missed as ever. Work that never ends, as on a disk that
    does not answer, is waited for: from outside it looks like any that is long.

    Args:
        world: this rank.
        work: of this rank alone, without a word to others. It returns what JSON can hold. What it raises is raised
            here: the others must then learn of it in another way, or by the end of this rank.

    Raises:
        PeerLost, PeerStalled: another rank is gone.
    """
    with _speaking_up(world):
        own = work()
    told: list[Any] = [_STILL_AT_IT]
    while _STILL_AT_IT in told:
        told = world.exchange(own)
    return told


@contextmanager
def _speaking_up(world: World) -> Generator[None]:
    # Work stays in its own thread: the user's code may care, and so do CUDA's devices.
    if world.size == 1:
        yield
        return
    over, problems = threading.Event(), list[Exception]()

    def speak() -> None:
        try:
            if world.device.type == "cuda":
                torch.cuda.set_device(world.device)
            while not over.wait(world.timeout.total_seconds() / _WITHIN_LIMIT):
                world.exchange(_STILL_AT_IT)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=speak, daemon=True, name="graphpipe-patience")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if problems:
        raise problems[0]
