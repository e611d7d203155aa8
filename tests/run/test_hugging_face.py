"""Real models: planned, cut, and trained on several ranks as plain PyTorch trains them on whole mini-batches."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from run_hugging_face import MODELS, Traced, plan_of, run_of, save_for_ranks, train_all, train_unpartitioned
from run_ranks import run_ranks, values

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import capture
from graphpipe.model.own_loss.from_transformers import from_transformers
from graphpipe.run import Pipeline

pytestmark = pytest.mark.timeout(600)
TIED = {"t5": "shared.weight", "bart": "model.shared.weight", "gpt2": "transformer.wte.weight"}
QUICK = ("clip", "gpt2", "vilt")
"""With a whole-batch head, a tied matrix, and by hand. `make test-slow` tries all."""
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS]
KINDS = {"clip": "CLIPOutput", "flava": "FlavaModelOutput", "vilt": "Tensor"}


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest) -> dict[str, Traced]:
    """Return the graph and loss of every model that a selected test is about."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    names = {call.params.get("name") for call in calls if call is not None}
    return {name: run_of(name).traced for name in MODELS if name in names}


@pytest.fixture(scope="module")
def plain(traced: dict[str, Traced]) -> dict[str, dict[str, Any]]:
    """Return the results of plain PyTorch for every model."""
    return {name: train_unpartitioned(name, each) for name, each in traced.items()}


@pytest.fixture(scope="module")
def saved(traced: dict[str, Traced], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the ranks read."""
    folder = tmp_path_factory.mktemp("saved")
    for name, each in traced.items():
        save_for_ranks(name, each, folder)
    return folder


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 4])
def trained(request: pytest.FixtureRequest, saved: Path) -> list[dict[str, Any]]:
    """Return every rank's results for every model; the ranks are started once for all models."""
    return values(run_ranks(train_all, request.param, saved / f"ranks-{request.param}", str(saved), seconds=500))


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_pipelines_over_all_devices_and_part_what_is_tied(name: str, traced: dict[str, Traced]) -> None:
    for devices in (2, 4):
        plan = plan_of(traced[name].graph, devices)
        assert len(plan.used_devices) == devices
        assert len(plan.stages) > 1
        if name in TIED:
            assert sum(TIED[name] in exchange.parameters for exchange in plan.tied_gradients) == 1


@pytest.mark.parametrize("name", NAMES)
def test_ranks_train_as_plain_pytorch_does(
    name: str, trained: list[dict[str, Any]], plain: dict[str, dict[str, Any]]
) -> None:
    expected, seen = plain[name], set[str]()
    for rank in (rank[name] for rank in trained):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        largest = max(gradient.abs().max().item() for gradient in expected["gradients"].values())
        for key, gradient in rank["gradients"].items():
            zero = torch.zeros_like(gradient)  # of parameters that the loss does not depend on
            assert_near(gradient, expected["gradients"].get(key, zero), largest, key)
        for key, weight in expected["state"].items():
            torch.testing.assert_close(rank["state"][key], weight, rtol=1e-5, atol=1e-5, msg=key)
        seen |= rank["gradients"].keys()
    assert expected["gradients"].keys() <= seen


def assert_near(gradient: Tensor, expected: Tensor, largest: float, name: str) -> None:
    """Compare with a relative tolerance of 1e-5; sums that cancel are rounded relative to their terms."""
    # With an absolute tolerance of 1e-5, half of flava's gradients could have been zero.
    away, allowed = (gradient - expected).abs().max().item(), 1e-5 * expected.abs().max().item() + 3e-7 * largest
    assert away <= allowed, f"{name} is {away:.1e} away, {allowed:.1e} are allowed"


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_gets_the_evaluation_in_the_models_own_containers(
    name: str, trained: list[dict[str, Any]], plain: dict[str, dict[str, Any]]
) -> None:
    for rank in (rank[name] for rank in trained):
        assert rank["kind"] == KINDS.get(name, "dict")
        if name not in ("clip", "flava"):  # they do not evaluate a loss without labels
            assert rank["evaluation"] == pytest.approx(plain[name]["evaluation"], rel=1e-5)
        whole = plain[name]["outputs"] if rank["kind"] != "dict" else plain[name]["outputs"][: len(rank["outputs"])]
        for found, expected in zip(rank["outputs"], whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def halves(graph: Graph) -> tuple[str, ...]:
    """Return the inputs of the model that the last stage of a two-stage plan reads."""
    last = plan_of(graph, 2).stages[1]
    return tuple(sorted({name for op in last.ops for name in graph[op].model_inputs}))


def test_masks_and_labels_enter_at_the_stage_that_reads_them() -> None:
    run = run_of("gpt2")
    assert halves(run.traced.graph) == ("attention_mask",)
    inputs, targets = run.split(0)
    given = {**inputs, "labels": targets["labels"].clamp(0)}  # all count: then the mean of means is the mean
    graph = capture(run.model, given, arguments={"use_cache": False}, outputs=["loss"])
    assert "labels" in halves(graph)
    plan = plan_of(graph, 2)
    assert "labels" not in {name for op in plan.stages[0].ops for name in graph[op].model_inputs}
    with Pipeline(plan, run.model, lambda output, _: output["loss"]) as pipeline:
        expected = run.model(**given).loss
        assert pipeline.step(given) == pytest.approx(expected.item(), rel=1e-6)
        (gradient,) = torch.autograd.grad(expected, [run.model.get_parameter("transformer.wte.weight")])
        torch.testing.assert_close(pipeline.gradients()["transformer.wte.weight"], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["gpt2", pytest.param("bart", marks=pytest.mark.slow)])
def test_dropout_follows_the_modes_of_the_users_model(name: str) -> None:
    run = run_of(name, dropout=0.2)
    with Pipeline(plan_of(run.traced.graph, 2), run.module, run.loss_fn) as pipeline:
        inputs, targets = run.split(0)
        run.model.eval()
        with torch.no_grad():
            expected = run.plain_loss(0).item()
        assert pipeline.step(inputs, targets) == pytest.approx(expected, rel=1e-5)
        run.model.train()
        dropped = pipeline.step(inputs, targets)
        assert dropped != pytest.approx(expected, rel=1e-4)
        assert pipeline.evaluate(inputs, targets)[0] == pytest.approx(expected, rel=1e-5)
        assert all(module.training for module in run.model.modules())


def test_layers_stay_whole_unless_they_are_to_be_split() -> None:
    model, batch = MODELS["vit"]()
    layers = ["vit.layers.0", "vit.layers.1"]
    whole = from_transformers(model, batch(0))
    assert [name for name in whole.graph.order if "layers" in name] == layers
    split = from_transformers(model, batch(0), split=layers[:1])
    assert {"vit.layers.0.attention", "vit.layers.0.mlp", "vit.layers.1"} <= {*split.graph.order}


def test_a_missing_input_of_a_mini_batch_is_named() -> None:
    model, batch = MODELS["vit"]()
    held = from_transformers(model, batch(0))
    with pytest.raises(InvalidInput, match="'labels' is missing, which the model's loss reads"):
        held.batch({"pixel_values": batch(0)["pixel_values"]})
    with pytest.raises(InvalidInput, match="input 'pixel_values' is missing"):
        held.batch({"labels": batch(0)["labels"]})
    bare = from_transformers(model, {"pixel_values": batch(0)["pixel_values"]})
    assert bare.batch(batch(0))[1] is None
    with pytest.raises(InvalidInput, match="ViTForImageClassification was captured without labels"):
        bare.loss_fn({}, None)
    with pytest.raises(InvalidInput, match="'pixel_values' is a list"):
        from_transformers(model, {"pixel_values": [0.0]})


@pytest.mark.slow
def test_the_example_trains_clip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = importlib.import_module("clip")
    monkeypatch.setattr(example, "STEPS", 20)
    example.main()
    output = capsys.readouterr().out
    first, second = (float(line.rpartition(" ")[2]) for line in output.splitlines() if line.startswith("step"))
    assert second < first < 1
    assert int(output.rpartition(": ")[2].rstrip("%\n")) >= 90
