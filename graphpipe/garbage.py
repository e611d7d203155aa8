"""Python's cyclic garbage collector, out of the way of work that makes no cycles."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """Run a block without cyclic garbage collection.

    A search makes hundreds of thousands of values that refer to each other in one direction only; reference counting
    frees them. Each full collection in between would walk all objects of the process: 0.2 s once torch is imported.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
