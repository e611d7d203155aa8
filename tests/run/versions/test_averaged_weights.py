"""Old weights from a moving average of the updates, worked out by hand."""

import torch
from torch import nn

from graphpipe.run.versions.averaged_weights import AveragedWeights
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead


def reconstructed(delay: int, values: list[float], back: int) -> float:
    """Update a weight to these values, and return what a backward reads that many updates before the last."""
    weight = nn.Parameter(torch.tensor([values[0]]))
    weights, task = AveragedWeights([weight], delay), StageTask("B", 0, 0)
    weights.begin({task: WeightRead(len(values) - 1, -back)})
    for value in values[1:]:
        weights.release()
        weight.data.fill_(value)
        weights.updated()
    with weights.reading(task):
        found = weight.item()
    weights.end()
    assert weight.item() == values[-1]
    return found


def test_the_first_version_is_exact_up_to_the_delay() -> None:
    assert reconstructed(3, [8.0, 7.0, 3.0, 2.0], 3) == 8.0  # steps of 1, 4 and 1
    assert reconstructed(3, [8.0, 7.0, 3.0], 2) == 8.0
    assert reconstructed(1, [8.0, 7.0, 3.0, 2.0], 1) == 3.0  # a delay of 1: the last step


def test_equal_steps_are_exact() -> None:
    for back in (1, 2):
        assert reconstructed(2, [9.0, 7.0, 5.0, 3.0, 1.0], back) == 1.0 + 2.0 * back


def test_later_the_average_forgets_by_the_delay() -> None:
    # Steps 4, 2, 0, 2 with a delay of 2: averages 4, 3, 3/2, 7/4.
    assert reconstructed(2, [8.0, 4.0, 2.0, 2.0, 0.0], 2) == 3.5


def test_a_stage_without_delay_keeps_nothing() -> None:
    assert reconstructed(0, [8.0, 7.0], 0) == 7.0
