"""Outputs of an evaluation, joined from several micro-batches."""

import pytest
import torch

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.step.gather_outputs import join


def test_outputs_are_joined_in_sample_order() -> None:
    joined = join([(SampleRange(2, 3), {"a": torch.tensor([2])}), (SampleRange(0, 2), {"a": torch.tensor([0, 1])})])
    assert joined["a"].tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match=r"an output of shape \[\] for 1 samples"):
        join([(SampleRange(0, 1), torch.tensor(1.0)), (SampleRange(1, 2), torch.tensor(1.0))])
