"""The benchmark against other tools: all train alike, and results that do not depend on the cores hold here too."""

import copy

import pytest
import torch

from bench.running.engines import ours, plain
from bench.running.runtime import alone_plan, chain, two_branches
from graphpipe.model.zoo.registry import zoo_model

pytestmark = pytest.mark.timeout(200)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_a_chain_trains_as_torch_pipelines_it() -> None:
    """The ranks compare the losses of a first step (`runtime_rank.py`). There are too few steps to compare times."""
    row = chain(2, "1f1b", warmup=1, repeats=3)
    assert row["steps"] == 3
    assert row["paired_ratio"] > 0


def test_one_rank_trains_as_gradient_accumulation_does() -> None:
    zoo = zoo_model("gpt-small")
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), 16)
    plan, twin = alone_plan("gpt-small", 8, 16), copy.deepcopy(zoo.module)
    one, other = ours(plan, zoo.module, zoo.loss_fn, inputs, targets), plain(twin, zoo.loss_fn, 2, inputs, targets)
    for _ in range(3):
        assert one() == pytest.approx(other(), rel=1e-5)
    for (name, weight), expected in zip(zoo.module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_two_branches_are_faster_than_their_chain_as_predicted() -> None:
    """Sleeping layers do not contend for cores. A graph of depth three is compared with a chain of five stages.

    Naps of 20 ms once gave 0.90 while other tests used both cores, because each rank then waits for a core between two.
    """
    row = two_branches("1f1b", longer=3, warmup=1, repeats=2)
    assert row["predicted_ratio"] == pytest.approx(0.80, abs=0.01)
    assert row["paired_ratio"] == pytest.approx(row["predicted_ratio"], abs=0.08)
