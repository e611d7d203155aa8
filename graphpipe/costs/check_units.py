"""Warn of times that may be in another unit."""

from graphpipe.costs.cost_model import CostModel
from graphpipe.user_frames import warn_user

LONGEST_SECONDS = 20.0
"""Plausible seconds, at most, of forward and backward of one sample on one device."""


def warn_of_units(model: CostModel, where: str) -> None:
    """Warn if one sample takes implausibly long. The warning gives the seconds.

    Args:
        model: of a file's costs.
        where: the file.
    """
    for device_type in sorted({device.type for device in model.cluster.devices}):
        seconds = float(sum(part.sum() for part in model.seconds(device_type, 1.0)))
        if seconds > LONGEST_SECONDS:
            warn_user(
                f"{where}: forward and backward of one sample sum to {seconds:.3g} s on {device_type}. "
                "Are the times in another unit?"
            )
