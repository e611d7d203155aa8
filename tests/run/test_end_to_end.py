"""A user's own module, captured, cut and trained: on one rank and on several."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from run_models import BATCH, STAGES, cross_entropy, fan_batch
from run_plans import captured_plan
from run_ranks import run_ranks, values
from run_scenarios import Ordinary, train_captured

from graphpipe.run import Pipeline


@pytest.mark.parametrize("cut", ["four", "mixed"])
def test_gradients_of_an_ordinary_module(cut: str) -> None:
    torch.manual_seed(0)
    model = Ordinary(0.0)
    inputs, targets = fan_batch()
    twin = copy.deepcopy(model)
    cross_entropy(twin(**inputs), targets).backward()
    plan = captured_plan(model, inputs, STAGES[cut], BATCH)
    pipeline = Pipeline(plan, model, cross_entropy)
    pipeline.step(tuple(inputs.values()), targets)
    found = pipeline.gradients()
    assert found.keys() == dict(twin.named_parameters()).keys()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_four_ranks_equal_one_bit_for_bit_as_a_graph_and_as_a_chain(tmp_path: Path) -> None:
    """A plan of a branching model as a chain has edges without values, and `Pipeline` refused it as unsound."""
    alone = train_captured("four")
    for rank in values(run_ranks(train_captured, 4, tmp_path, "four")):
        for found, wanted in zip(rank, alone, strict=True):
            assert_same(found, wanted)
    graph, chain, _ = alone
    assert_same(chain, graph)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == wanted["losses"]
    assert found["evaluation"] == wanted["evaluation"]
    assert found["state"].keys() == wanted["state"].keys()
    for name, tensor in wanted["state"].items():
        assert torch.equal(found["state"][name], tensor), name
