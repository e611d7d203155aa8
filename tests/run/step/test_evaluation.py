"""Evaluation: any number of samples, forward only, nothing changes."""

import pytest
import torch
from run_models import BATCH, STAGES, contrastive, cross_entropy, fan, fan_batch
from run_plans import hand_split, plan_of
from torch import Tensor, nn

from graphpipe.model.dag_module import DagModule
from graphpipe.run import Pipeline


def build(model: DagModule, cut: str, loss_fn: object = cross_entropy) -> Pipeline:
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, STAGES[cut], BATCH)
    return Pipeline(plan, hand_split(model, plan, inputs), loss_fn)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("samples", [1, 2, 7, 12, 31])
@pytest.mark.parametrize("cut", STAGES)
def test_outputs_and_loss_equal_the_models(cut: str, samples: int) -> None:
    model = fan(dropout=0.5, norm=True)
    pipeline = build(model, cut)
    pipeline.step(*fan_batch())
    inputs, targets = fan_batch(samples)
    model.eval()
    with torch.no_grad():
        expected = model(**inputs)
    model.train()
    loss, outputs = pipeline.evaluate(inputs, targets)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(cross_entropy(expected, targets).item(), rel=1e-5)
    assert not outputs.requires_grad


@pytest.mark.parametrize("samples", [5, 12, 30])
def test_a_whole_batch_stage_gets_all_samples(samples: int) -> None:
    model = fan(head="contrast")
    inputs, _ = fan_batch(samples)
    loss, outputs = build(model, "whole", contrastive).evaluate(inputs, torch.zeros(samples))
    assert outputs.shape == (samples, samples)
    assert loss == pytest.approx(contrastive(model(**inputs), None).item(), rel=1e-5)


def test_evaluation_leaves_modes_gradients_and_training_alone() -> None:
    losses = []
    for interrupted in (False, True):
        model = fan(dropout=0.5, norm=True)
        model.get_submodule("left").eval()
        pipeline = build(model, "replicas")
        losses.append([pipeline.step(*fan_batch())])
        before = pipeline.gradients()
        if interrupted:
            assert pipeline.evaluate(fan_batch(7)[0], gather=False) == (None, None)
            assert pipeline.gradients().keys() == before.keys()
            assert all(gradient is before[name] for name, gradient in pipeline.gradients().items())
        assert not model.get_submodule("left").training
        assert model.get_submodule("stem").training
        losses[-1].append(pipeline.step(*fan_batch()))
    assert losses[0] == losses[1]


def test_outputs_may_be_a_tree() -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor) -> dict[str, object]:
            return {"first": x[:, 0], "rest": (x[:, 1:], None)}

    model = DagModule({"a": nn.Linear(5, 3), "b": Split()}, inputs={"a": ["x"], "b": ["a"]})
    inputs = {"x": fan_batch(7)[0]["x"]}
    shapes = DagModule({"a": model.get_submodule("a"), "b": nn.Identity()}, inputs={"a": ["x"], "b": ["a"]})
    plan = plan_of(model, inputs, [(["a"], [0], 4), (["b"], [1, 2], 6)], BATCH)
    programs = hand_split(shapes, plan, inputs)
    programs[1].module["b"] = model.get_submodule("b")
    _, outputs = Pipeline(plan, programs, cross_entropy).evaluate(inputs)
    expected = model(**inputs)
    torch.testing.assert_close(outputs["first"], expected["first"])
    torch.testing.assert_close(outputs["rest"][0], expected["rest"][0])
    assert outputs["rest"][1] is None
