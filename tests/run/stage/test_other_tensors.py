"""Models that read literals and plain tensors, or have sparse gradients, train like the unpartitioned model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import run_ranks, values
from run_tensors import train, train_both, train_unpartitioned


def assert_alike(found: dict[str, Any], *, sparse: bool = False) -> None:
    losses, evaluation, state = train_unpartitioned(sparse=sparse)
    for label, (their_losses, their_evaluation, their_state) in found.items():
        assert their_losses == pytest.approx(losses, rel=1e-5), label
        assert their_evaluation == pytest.approx(evaluation, rel=1e-5), label
        assert their_state.keys() == state.keys()
        for name, each in state.items():
            torch.testing.assert_close(their_state[name], each, rtol=1e-5, atol=1e-6, msg=f"{label}: {name}")


def test_constants_are_the_same_in_replicas_of_one_process() -> None:
    """fx made a buffer of every constant when a replica was copied: ViT-MAE failed after its first update.

    The error was "zip() argument 2 is longer than argument 1", after weights had changed.
    """
    for recompute in ("none", "full"):
        assert_alike(train(["allreduce"], (0, 1), recompute))


def test_sparse_gradients_are_summed_and_count_in_the_norm() -> None:
    """The norm of all gradients failed with "unsupported memory format option Contiguous" for `sparse=True`."""
    for options in ({}, {"clip_norm": 1e6}):
        assert_alike(train(["allreduce"], (0, 1), sparse=True, **options), sparse=True)


def test_constants_and_sparse_gradients_beside_other_synchronisations(tmp_path: Path) -> None:
    """The copy of a model that `fsdp2` shards had buffers that the model has not, and its result was lost at the end.

    A stage that trains a sparse embedding has one replica here, and the next stage has two.
    """
    for constants, sparse in values(run_ranks(train_both, 2, tmp_path, ["ddp", "fsdp2"], seconds=60)):
        assert_alike(constants)
        assert_alike(sparse, sparse=True)
