"""Targets that are not tensors are given to each micro-batch whole, so those of samples are refused.

A loss that goes through outputs and targets side by side took the targets of the first samples for each micro-batch.
The first step noticed it, but not if those targets were all the same, and the remedy did not help.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graphpipe as gp
from graphpipe.run.stage.mini_batch import check_rows

INPUTS = {"x": torch.zeros(4, 3)}


@dataclass
class Boxes:
    corners: Tensor


@pytest.mark.parametrize(
    ("targets", "where"),
    [
        ([1, 2, 0, 1], "targets: is a list with as many entries as there are samples (4)"),
        (("a", "b", "c", "d"), "targets: is a tuple"),
        ([[1.0], [2.0], [3.0], [4.0]], "targets: is a list"),
        (np.zeros(4), "targets: is a ndarray"),
        ({"y": torch.zeros(4), "names": ["a", "b", "c", "d"]}, "targets['names']: is a list"),
        ([torch.zeros(4), {"deep": [1, 2, 3, 4]}], "targets[1]['deep']: is a list"),
        (Boxes(torch.zeros(4, 2)), "targets: is a Boxes, whose 'corners' has a row for each sample"),
    ],
)
def test_values_of_samples_that_are_not_tensors_are_refused(targets: Any, where: str) -> None:
    with pytest.raises(gp.InvalidInput) as refused:
        check_rows(INPUTS, targets)
    assert str(refused.value).startswith(where)
    assert "Give a tensor with samples in front" in str(refused.value)


@pytest.mark.parametrize(
    "targets",
    [
        None,
        "text",
        2.5,
        {"y": torch.zeros(4), "weights": [0.5, 1.0, 2.0], "kind": "train", "none": None},
        [torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4)],
        {"y": torch.zeros(4), "table": np.zeros(3)},
        Boxes(torch.zeros(2, 2)),
    ],
)
def test_other_values_are_kept(targets: Any) -> None:
    assert check_rows(INPUTS, targets) == 4


def test_what_is_wrong_with_the_number_of_samples_is_said() -> None:
    with pytest.raises(gp.InvalidInput, match="input 'x' holds no sample"):
        check_rows({"x": torch.zeros(0, 3)}, torch.zeros(0))
    with pytest.raises(gp.InvalidInput, match=r"target 0 is a single number.*float\(target\)"):
        check_rows(INPUTS, torch.tensor(2.0))
    with pytest.raises(gp.InvalidInput, match="target 1 holds 3 samples, input 'x' holds 4"):
        check_rows(INPUTS, (torch.zeros(4), torch.zeros(3)))
