"""Training without a flush: every policy equals a reference with explicit versions of the whole model, bit for bit."""

from typing import Any

import pytest
import torch
from run_versions import CUTS, OPTIMIZERS, train_reference, train_segments

from graphpipe.plans.stage import WeightPolicy

STORED: tuple[WeightPolicy, ...] = ("stash", "vertical-sync", "double-buffer")


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"]
    for name, weight in expected["weights"].items():
        assert torch.equal(found["weights"][name], weight), name


@pytest.mark.parametrize("policy", STORED)
@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut != "chain"])
def test_stored_versions_equal_the_reference(cut: str, policy: WeightPolicy) -> None:
    for optimizer, schedule in (("sgd", "1f1b"), ("adamw", "zb-h1")):
        found = train_segments(cut, policy, optimizer=optimizer, schedule=schedule)
        assert_same(found, train_reference(cut, policy, optimizer))


@pytest.mark.parametrize("policy", STORED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_and_schedule_on_a_chain(policy: WeightPolicy, optimizer: str) -> None:
    expected = train_reference("chain", policy, optimizer)
    for schedule in ("1f1b", "zb-h1"):
        assert_same(train_segments("chain", policy, optimizer=optimizer, schedule=schedule), expected)
