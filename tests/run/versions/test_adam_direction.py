"""The next update of Adam, where the optimizer counts its steps on the device."""

import torch

from graphpipe.run.versions.adam_direction import adam_direction


def test_a_count_on_the_device_is_not_read() -> None:
    """Fused and capturable optimizers count there, and reading the count let the host wait inside a segment."""
    there = {name: torch.ones(3, device="meta") for name in ("exp_avg", "exp_avg_sq")}
    state = there | {"step": torch.tensor(3.0, device="meta")}  # float() of it raises, because it has no value
    group = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "maximize": False}
    direction = adam_direction(group, state)
    assert direction is not None
    assert (direction.device.type, direction.shape) == ("meta", (3,))
