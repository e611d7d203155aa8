"""Checks that a device works: `python -m graphpipe.training.elastic.device_probe` multiplies two small matrices on it.

It runs in a process of its own, so that a device that hangs does not hang the supervisor.
"""

import torch

from graphpipe.devices.registry import default_kind
from graphpipe.launch.parent_watch import die_with_launcher


def main() -> None:
    """Compute on the first visible accelerator, or on the CPU if there is none, and check the result."""
    die_with_launcher()
    device = torch.device(default_kind().name, 0)
    ones = torch.ones(64, 64, device=device)
    assert bool((ones @ ones == 64).all())


if __name__ == "__main__":
    main()
