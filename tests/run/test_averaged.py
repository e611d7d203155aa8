"""Averages of weights in one process: under weight policies, in place of the weights, and after a step that failed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import graphpipe as gp
from tests.support.programs.plain_training import cut_plan

DECAY = 0.6


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def copies(module: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in module.named_parameters()}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("weights", ["flush", "stash", "moving-average"])
def test_the_averages_are_those_of_torch_and_stand_in_for_the_weights(weights: Any) -> None:
    one = model()
    torch.manual_seed(0)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    expected = AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    expected.update_parameters(one)  # the first call only copies
    options = gp.PipelineOptions(weights=weights, average_decay=DECAY)

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd, options=options) as it:
        for _ in range(3):
            it.step(x, y)
            expected.update_parameters(one)
        before, loss = copies(one), it.evaluate(x, y)[0]
        with it.averaged():
            for name, each in expected.module.named_parameters():
                torch.testing.assert_close(dict(one.named_parameters())[name], each)
            averaged, _ = it.evaluate(x, y)
        assert averaged == pytest.approx(nn.functional.cross_entropy(expected.module(x), y).item(), rel=1e-5)
        assert averaged != loss
        assert all(torch.equal(before[name], each) for name, each in copies(one).items())
        with pytest.raises(gp.NonFiniteLoss):
            it.segment([(x, y), (x * float("nan"), y)][weights == "flush" :])
        with it.averaged():  # what failed has changed no average
            for name, each in expected.module.named_parameters():
                torch.testing.assert_close(dict(one.named_parameters())[name], each)


def test_a_pipeline_without_averages_says_so() -> None:
    one, x = model(), torch.randn(8, 6)
    with (
        gp.Pipeline(cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.mse_loss) as it,
        pytest.raises(gp.InvalidInput, match=r"no averages are kept\. Give PipelineOptions\(average_decay=\)"),
        it.averaged(),
    ):
        pass
