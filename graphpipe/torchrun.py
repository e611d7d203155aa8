"""Whether torchrun, or a launcher like it, has started this process."""

import os


def under_torchrun() -> bool:
    """Return whether this process is a rank that torchrun has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
