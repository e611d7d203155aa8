"""Whether times look like another unit's."""

import warnings

from graphpipe.costs.cost_model import CostModel

LONGEST_SECONDS = 20.0
"""Forward and backward of one sample of any model worth planning take less, alone on one device."""


def warn_of_units(model: CostModel, where: str) -> None:
    """Warn, with the figure, when one sample takes longer than any would.

    Args:
        model: of a file's costs.
        where: the file.
    """
    for device_type in sorted({device.type for device in model.cluster.devices}):
        seconds = float(sum(part.sum() for part in model.seconds(device_type, 1.0)))
        if seconds > LONGEST_SECONDS:
            warnings.warn(
                f"{where}: forward and backward of one sample sum to {seconds:.3g} s on {device_type}; "
                "are the times in another unit?",
                stacklevel=2,
            )
