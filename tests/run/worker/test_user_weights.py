"""Weights that the user changes between steps.

Other replicas in the process, slices of layers that a plan splits, and shards kept the old values in silence.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from run_changed_weights import CHANGES, by_pipeline, in_plain_pytorch, on_ranks
from run_ranks import run_ranks, values

pytestmark = pytest.mark.timeout(120)
KINDS = [("replicas", "allreduce"), ("replicas", "fsdp2"), ("replicas", "fsdp2-layers"), ("split", "allreduce")]


def assert_equal(found: Any, name: str) -> None:
    (losses, weights), (expected, trained) = found, in_plain_pytorch(name)
    assert losses == pytest.approx(expected, rel=1e-12)
    for key, value in trained.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", ["replicas", "cut", "split", "stash"])
def test_one_process_trains_as_plain_pytorch_does(kind: str, name: str) -> None:
    assert_equal(by_pipeline(kind, "allreduce", name, gathered=False), name)


def test_ranks_train_as_plain_pytorch_does_what_is_changed_after_it_was_gathered(tmp_path: Path) -> None:
    for found in values(run_ranks(on_ranks, 2, tmp_path, KINDS, True)):
        for label, each in found.items():
            assert_equal(each, label.rpartition(" ")[2])


def test_ranks_refuse_what_is_changed_where_the_weights_are_not(tmp_path: Path) -> None:
    """The user's model has no memory there. What its ranks hold whole is trained as in plain PyTorch.

    Torch does not count what is written to `weight.data`, so `weight.data.clamp_()` was ignored in silence.
    """
    for found in values(run_ranks(on_ranks, 2, tmp_path, KINDS, False)):
        for label, each in found.items():
            elsewhere = "fsdp2" in label or ("split" in label and not label.endswith("buffer"))
            if not elsewhere:
                assert_equal(each, label.rpartition(" ")[2])
            else:
                assert re.match(r"step: '\S+' was changed between steps.* this rank computes with a copy", each), label
