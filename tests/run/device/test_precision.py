"""Mixed precision gives the results of torch's recipe for the unpartitioned model, however the model is cut."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_chain import chain, chain_batch
from run_models import BATCH, cross_entropy, fan_batch
from run_plans import plan_for
from run_precision import STEPS, build, resume, train, train_unpartitioned
from run_ranks import run_ranks, values

from graphpipe.errors import InvalidInput, NonFiniteLoss
from graphpipe.model.capture.capture import capture
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.device.precision import LossScale, check_planned_precision

ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}


@pytest.mark.parametrize("loss", ["plain", "steep"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_whole_mini_batches_train_exactly_as_the_unpartitioned_model(precision: str, loss: str) -> None:
    expected = train_unpartitioned(precision, loss, clip_norm=None)
    found = train("whole", precision, loss, ["allreduce"], {"clip_norm": None})["allreduce"]
    assert found["losses"] == expected["losses"]
    assert found["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-6)
    assert len(set(found["losses"])) > 1
    for part in ("gradients", "state"):
        assert found[part].keys() == expected[part].keys()
        for name, each in found[part].items():
            assert each.dtype == torch.float32
            assert torch.equal(each, expected[part][name]), name
    assert found["scales"] == (expected["scales"] if precision == "fp16" else [1.0] * STEPS)


def test_the_loss_scale_falls_until_float16_gradients_are_finite() -> None:
    scales = train_unpartitioned("fp16", "steep")["scales"]
    assert scales[0] < 2.0**16
    assert scales[-1] == scales[-2]  # there were steps that did not overflow


def test_the_loss_scale_doubles_after_two_thousand_finite_steps_in_a_row() -> None:
    scale = LossScale(factor=8.0)
    for _ in range(1999):
        scale = scale.after(finite=True)
    assert (scale.factor, scale.good_steps) == (8.0, 1999)
    assert scale.after(finite=True) == LossScale(factor=16.0, good_steps=0)
    assert scale.after(finite=False) == LossScale(factor=4.0, good_steps=0)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_every_engine_trains_on_several_ranks_within_the_rounding(precision: str, tmp_path: Path) -> None:
    kinds = ["allreduce", "fsdp2", "ddp, zero"]
    expected = train_unpartitioned(precision, "steep")
    ranks: list[dict[str, Any]] = values(
        run_ranks(train, 4, tmp_path, "both", precision, "steep", kinds, {}, seconds=100)
    )
    for rank in ranks:
        for found in rank.values():
            assert found["losses"] == pytest.approx(expected["losses"], rel=30 * ROUNDING[precision])
            assert found["losses"] == ranks[0]["allreduce"]["losses"] or found is not rank["allreduce"]
            assert found["scales"] == ranks[0]["allreduce"]["scales"]
            assert all(each.dtype == torch.float32 for each in found["gradients"].values())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_are_clipped_after_they_are_unscaled(precision: str) -> None:
    expected = train_unpartitioned(precision, "steep", clip_norm=0.5)
    found = train("whole", precision, "steep", ["allreduce"], {"clip_norm": 0.5})["allreduce"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    for name, each in found["gradients"].items():
        torch.testing.assert_close(each, expected["gradients"][name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_recomputation_is_in_the_same_precision(precision: str) -> None:
    once = train("both", precision, "plain", ["allreduce"], {})["allreduce"]
    again = train("both", precision, "plain", ["allreduce"], {"recompute": True})["allreduce"]
    assert again["losses"] == once["losses"]
    for name, each in once["state"].items():
        assert torch.equal(again["state"][name], each), name


def test_split_backwards_use_the_same_precision() -> None:
    whole = train("both", "bf16", "plain", ["allreduce"], {})["allreduce"]
    halves = train("both", "bf16", "plain", ["allreduce"], {"schedule": "zb-h1"})["allreduce"]
    assert halves["losses"] == pytest.approx(whole["losses"], rel=1e-6)


def test_a_resumed_training_continues_with_its_loss_scale(tmp_path: Path) -> None:
    expected = train_unpartitioned("fp16", "steep")
    assert resume(str(tmp_path), "fp16") == (expected["scales"][1], expected["losses"][2:])


def test_a_checkpoint_of_float16_training_loads_into_another_precision(tmp_path: Path) -> None:
    scale, losses = resume(str(tmp_path), "fp32")
    assert scale == 1.0
    assert losses[0] == pytest.approx(train_unpartitioned("fp16", "steep")["losses"][2], rel=30 * ROUNDING["fp16"])


def test_a_run_has_the_precision_of_its_plan() -> None:
    model, (inputs, _) = chain(), chain_batch()
    graph = capture(model, inputs, precision="bf16")
    plan = plan_for(graph, [([op.name for op in graph.ops], [0], BATCH)], BATCH)
    with pytest.raises(InvalidInput) as error:
        Pipeline(plan, model, cross_entropy, options=PipelineOptions())
    assert error.value.where == "precision"
    assert error.value.what == "is fp32, but the plan counts the memory and messages of bf16"
    Pipeline(plan, model, cross_entropy, options=PipelineOptions(precision="bf16")).close()
    assert graph.origin is not None
    earlier = replace(graph, origin=replace(graph.origin, precision=None))  # as files of earlier versions have it
    check_planned_precision(replace(plan, graph=earlier), "fp16")


def test_gradients_that_stay_infinite_at_any_scale_end_the_training() -> None:
    pipeline, model = build("whole", "fp16", "plain")
    with torch.no_grad():
        model.get_submodule("head").scale.fill_(float("nan"))
    with pytest.raises(NonFiniteLoss, match="stage 'head'"):
        pipeline.step(*fan_batch())
    assert pipeline.loss_scale == 2.0**16
