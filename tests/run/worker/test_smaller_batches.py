"""The last, smaller mini-batch of an epoch ended a training after the epoch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.run.worker.smaller_batches import smaller_plan
from tests.support.programs.plain_training import cut_plan

pytestmark = pytest.mark.timeout(60)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data(samples: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(samples)
    return torch.randn(samples, 6, dtype=torch.float64), torch.randint(3, (samples,))


def plan_of(model: nn.Module, **options: Any) -> gp.Plan:
    graph = gp.capture(model, torch.randn(4, 6).double())
    return cut_plan(graph, batch_size=8, micro_batch=2, **options)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_smaller_mini_batch_is_trained_as_plain_pytorch_does(recompute: str) -> None:
    piped, loss = net().double(), nn.functional.cross_entropy
    plain = copy.deepcopy(piped)
    updates = torch.optim.AdamW(plain.parameters(), lr=0.1)
    options = gp.PipelineOptions(record=True)
    plan = plan_of(piped, recompute=recompute)
    with gp.Pipeline(plan, piped, loss, lambda p: torch.optim.AdamW(p, lr=0.1), options=options) as pipe:
        for samples in (8, 6, 8, 2, 4, 5, 1):
            inputs, targets = data(samples)
            updates.zero_grad()
            expected = loss(plain(inputs), targets)
            expected.backward()
            updates.step()
            assert pipe.step(inputs, targets) == pytest.approx(expected.item(), rel=1e-12)
        assert pipe.trace().batch_size == 8  # the last step of the plan's own size
        with pytest.raises(gp.InvalidInput, match="has 10 samples, the plan is for 8"):
            pipe.step(*data(10))
    for one, other in zip(piped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_labels_that_count_are_those_of_the_smaller_mini_batch() -> None:
    piped, loss = net().double(), nn.CrossEntropyLoss(ignore_index=0)
    with gp.Pipeline(plan_of(piped), piped, loss) as pipe:
        inputs, targets = data(6)
        expected = loss(piped(inputs), targets)
        assert pipe.step(inputs, targets) == pytest.approx(expected.item(), rel=1e-12)


def test_a_stage_with_the_whole_mini_batch_takes_all_samples() -> None:
    model = net().double()
    graph = gp.capture(model, torch.randn(4, 6).double(), whole_batch=["2"])
    smaller = smaller_plan(cut_plan(graph, batch_size=8, micro_batch=2, cut=1), 6)
    assert [stage.micro_batch for stage in smaller.stages] == [2, 6]
    assert smaller.batch_size == 6
