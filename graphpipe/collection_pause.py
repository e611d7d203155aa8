"""A pause of cyclic garbage collection, for blocks that make very many objects without reference cycles."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """Run a block, or a function, without cyclic garbage collection.

    A search for plans, the export of a model and an import make hundreds of thousands of objects. Most of them are
    kept, or reference counting frees them. A full collection would walk all objects of the process, which takes 0.2 s
    once torch is imported.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
