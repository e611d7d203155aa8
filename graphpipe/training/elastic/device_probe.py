"""Whether a device answers: `python -m graphpipe.training.elastic.device_probe` multiplies two small matrices on it.

It is a process of its own: a device that hangs, hangs it alone.
"""

import torch

from graphpipe.launch.parent_watch import end_with_launcher


def main() -> None:
    """Compute on the first CUDA device that is visible, or else on the CPU, and check the result."""
    end_with_launcher()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    ones = torch.ones(64, 64, device=device)
    assert bool((ones @ ones == 64).all())


if __name__ == "__main__":
    main()
