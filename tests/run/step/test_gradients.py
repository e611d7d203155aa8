"""One rank runs the whole plan: its gradients are those of the unpartitioned model on the whole mini-batch."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from run_models import BATCH, STAGES, contrastive, cross_entropy, fan, fan_batch
from run_plans import StageLine, hand_split, in_bursts, plan_of
from torch import Tensor, nn

from graphpipe.model.dag_module import DagModule
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.schedule.schedulers.registry import build_schedule

Loss = Callable[[Any, Any], Tensor]


def plain_gradients(model: nn.Module, inputs: Any, targets: Any, loss_fn: Loss) -> tuple[float, dict[str, Any]]:
    twin = copy.deepcopy(model)
    loss = loss_fn(twin(**inputs), targets)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in twin.named_parameters()}


def pipeline_of(model: DagModule, stages: Sequence[StageLine], loss_fn: Loss, **options: Any) -> Pipeline:
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, stages, BATCH, options.pop("schedule", "1f1b"))
    return Pipeline(plan, hand_split(model, plan, inputs), loss_fn, options=PipelineOptions(**options))


def assert_same_gradients(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize("cut", STAGES)
def test_gradients_equal_those_of_the_unpartitioned_model(cut: str, order: str) -> None:
    model = fan()
    inputs, targets = fan_batch()
    loss, expected = plain_gradients(model, inputs, targets, cross_entropy)
    pipeline = pipeline_of(model, STAGES[cut], cross_entropy, schedule=order)
    assert pipeline.step(inputs, targets) == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(pipeline.gradients(), expected)


@pytest.mark.parametrize(
    ("cut", "bursts", "last"),
    [
        ("four", (1, 1, 2, 3), "F3.0 F3.1 F3.2 B3.0 B3.1 B3.2 F3.3 F3.4 F3.5 B3.3 B3.4 B3.5"),
        ("four", (2, 1, 1, 2), "F3.0 F3.1 B3.0 B3.1 F3.2 F3.3 B3.2 B3.3 F3.4 F3.5 B3.4 B3.5"),
        ("replicas", (3, 1), "F1.0 B1.0 F1.1 B1.1"),
    ],
)
def test_bursts_of_unequal_micro_batches_give_the_same_gradients(cut: str, bursts: Sequence[int], last: str) -> None:
    model = fan()
    inputs, targets = fan_batch()
    loss, expected = plain_gradients(model, inputs, targets, cross_entropy)
    plan = in_bursts(plan_of(model, inputs, STAGES[cut], BATCH), bursts)
    order = build_schedule(plan)
    assert " ".join(map(str, order.devices[-1])) == last
    pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy, options=PipelineOptions(debug=True))
    assert pipeline.step(inputs, targets) == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(pipeline.gradients(), expected)


@pytest.mark.parametrize("cut", ["mixed", "whole"])
def test_a_whole_batch_loss_is_exact(cut: str) -> None:
    model = fan(head="contrast")
    inputs, _ = fan_batch()
    loss, expected = plain_gradients(model, inputs, None, contrastive)
    pipeline = pipeline_of(model, STAGES[cut], contrastive)
    assert pipeline.step(inputs) == pytest.approx(loss, rel=1e-6)
    assert_same_gradients(pipeline.gradients(), expected)
