"""One rank runs the whole plan: its gradients are those of the unpartitioned model on the whole mini-batch."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from run_models import BATCH, STAGES, contrastive, cross_entropy, fan, fan_batch
from run_plans import StageLine, hand_split, plan_of
from torch import Tensor, nn

from graphpipe.model.dag_module import DagModule
from graphpipe.run import Pipeline

Loss = Callable[[Any, Any], Tensor]


def plain_gradients(model: nn.Module, inputs: Any, targets: Any, loss_fn: Loss) -> tuple[float, dict[str, Any]]:
    twin = copy.deepcopy(model)
    loss = loss_fn(twin(**inputs), targets)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in twin.named_parameters()}


def pipeline_of(model: DagModule, stages: Sequence[StageLine], loss_fn: Loss, **options: Any) -> Pipeline:
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, stages, BATCH, options.pop("schedule", "1f1b"))
    return Pipeline(plan, hand_split(model, plan, inputs), loss_fn, **options)


def assert_same_gradients(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("cut", STAGES)
def test_gradients_equal_those_of_the_unpartitioned_model(cut: str, schedule: str) -> None:
    model = fan()
    inputs, targets = fan_batch()
    loss, wanted = plain_gradients(model, inputs, targets, cross_entropy)
    pipeline = pipeline_of(model, STAGES[cut], cross_entropy, schedule=schedule)
    assert pipeline.step(inputs, targets) == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(pipeline.gradients(), wanted)


@pytest.mark.parametrize("cut", ["mixed", "whole"])
def test_a_whole_batch_loss_is_exact(cut: str) -> None:
    model = fan(head="contrast")
    inputs, _ = fan_batch()
    loss, wanted = plain_gradients(model, inputs, None, contrastive)
    pipeline = pipeline_of(model, STAGES[cut], contrastive)
    assert pipeline.step(inputs) == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(pipeline.gradients(), wanted)
