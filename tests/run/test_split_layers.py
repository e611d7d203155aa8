"""A split layer trains as the whole layer does: on one rank and on several, from checkpoints of any plan."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from run_plans import plan_for
from run_ranks import run_ranks, values
from run_split_layers import (
    BATCH,
    TABLES,
    Tables,
    adam,
    batch,
    build,
    found_plan,
    model_of,
    plan_of,
    resume,
    tables_batch,
    train,
    train_and_save,
    train_plainly,
)
from safetensors.torch import load_file
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice, split_ops
from graphpipe.model.capture.capture import capture
from graphpipe.run import Pipeline
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.export.export_weights import export_weights
from graphpipe.simulator import step_seconds

NAME = "head.linear.weight"
SLICES = [f"{NAME}[:, 0:4]", f"{NAME}[:, 4:7]", f"{NAME}[:, 7:13]"]


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
    for name, tensor in wanted["state"].items():
        torch.testing.assert_close(found["state"][name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == wanted["losses"]
    for name, tensor in wanted["state"].items():
        assert torch.equal(found["state"][name], tensor), name


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the training of the split model in one stage."""
    return train("one", ["allreduce"])["allreduce"]


def test_gradients_are_those_of_the_whole_layer() -> None:
    twin, (inputs, targets) = model_of(), batch(0)
    output = twin(inputs)
    functional.mse_loss(output, targets).backward()
    pipeline = Pipeline(plan_of("two"), model_of(), functional.mse_loss)
    _, found = pipeline.evaluate(inputs)
    torch.testing.assert_close(found, output, rtol=1e-6, atol=1e-7)
    pipeline.step(inputs, targets)
    gradients = pipeline.gradients()
    assert set(gradients) == {*dict(twin.named_parameters()), *SLICES} - {NAME}
    for name, gradient in gradients.items():
        assert gradient is not None
        piece = ParameterSlice.parse(name)
        wanted = twin.get_parameter(piece.parameter if piece else name).grad
        assert wanted is not None
        wanted = wanted[:, piece.start : piece.stop] if piece else wanted
        assert (gradient - wanted).abs().max() <= 1e-6 * wanted.abs().max(), name


def test_a_training_in_one_process_equals_plain_pytorch(alone: dict[str, Any]) -> None:
    assert_close(alone, train_plainly())
    assert_same(train("two", ["allreduce"])["allreduce"], alone)


def test_two_ranks_equal_one_bit_for_bit(tmp_path: Path, alone: dict[str, Any]) -> None:
    for rank in values(run_ranks(train, 2, tmp_path, "two", ["allreduce"])):
        assert_same(rank["allreduce"], alone)


@pytest.mark.slow
def test_every_engine_trains_replicas_of_parts(tmp_path: Path) -> None:
    plain = train_plainly()
    kinds = ["allreduce", "ddp", "fsdp2", "allreduce, zero"]
    for rank in values(run_ranks(train, 3, tmp_path, "replicas", kinds)):
        for kind in kinds:
            assert_close(rank[kind], plain)


@pytest.mark.slow  # Split operators, and shared devices, train alike above and in other files.
def test_a_found_plan_with_split_operators_and_shared_devices_trains_like_plain_pytorch(tmp_path: Path) -> None:
    plan, unsplit, plain = found_plan("auto"), found_plan("none"), train_plainly()
    assert plan.shares_devices
    assert unsplit.shares_devices
    assert step_seconds(plan) < 0.95 * step_seconds(unsplit)
    assert plan.graph.origin is not None
    assert [split.op for split in plan.graph.origin.split_ops] == ["head"]
    assert len({stage.devices for stage in plan.stages}) == 2
    split, whole = str(tmp_path / "split.json"), str(tmp_path / "whole.json")
    plan.save(split)
    unsplit.save(whole)
    assert_close(train(whole, ["allreduce"])["allreduce"], plain)
    for rank in values(run_ranks(train, 3, tmp_path, split, ["allreduce"])):
        assert_close(rank["allreduce"], plain)


def test_the_users_model_has_the_weights_when_the_pipeline_closes() -> None:
    pipeline, model = build("two")
    with pipeline:
        pipeline.step(*batch(0))
        _, output = pipeline.evaluate(batch(0)[0])
    with torch.no_grad():
        torch.testing.assert_close(model(batch(0)[0]), output)


@pytest.mark.parametrize(("saved", "loaded"), [("whole", "two"), ("two", "whole"), ("two", "one")])
def test_a_checkpoint_loads_under_any_plan(saved: str, loaded: str, tmp_path: Path) -> None:
    train_and_save("whole", str(tmp_path / "other"), "allreduce")
    wanted = resume("whole", str(tmp_path / "other"), "allreduce")
    train_and_save(saved, str(tmp_path / "folder"), "allreduce")
    assert_close(resume(loaded, str(tmp_path / "folder"), "allreduce"), wanted)


def test_ranks_save_their_slices_and_load_what_they_need(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    values(run_ranks(train_and_save, 3, tmp_path / "a", "replicas", str(folder), "allreduce, zero"))
    (checkpoint,) = folder.glob("step-*")
    held = {
        path.name: {name for name in load_file(path) if name.startswith(NAME)} for path in checkpoint.glob("model*")
    }
    assert sorted(held.values(), key=len) == [{SLICES[2]}, set(SLICES[:2])]
    export_weights(folder, tmp_path / "weights.safetensors")
    exported = load_file(tmp_path / "weights.safetensors")
    assert {name: each.shape for name, each in exported.items()} == {
        name: each.shape for name, each in model_of().state_dict().items()
    }
    wanted = resume("whole", str(folder), "allreduce")
    for found in values(run_ranks(resume, 2, tmp_path / "b", "two", str(folder), "allreduce")):
        assert_close(found, wanted)


def test_state_that_cannot_be_cut_is_refused_by_name(tmp_path: Path) -> None:
    split, whole = (
        Pipeline(plan_of(cut), model_of(), functional.mse_loss, lambda parameters: torch.optim.Adafactor(parameters))
        for cut in ("two", "whole")
    )
    with Checkpoints(split, tmp_path) as checkpoints:
        split.step(*batch(0))
        checkpoints.save()
    with pytest.raises(InvalidInput, match=f"'row_var' of parameter '{NAME}' was saved for"):
        Checkpoints(whole, tmp_path).load()


@pytest.mark.parametrize("path", ["head", "head.linear"])
def test_a_hook_that_was_added_after_planning_is_refused_by_name(path: str) -> None:
    model = model_of()
    model.get_submodule(path).register_forward_hook(lambda *_: None)
    with pytest.raises(InvalidInput, match=r"the plan splits 'head\.linear', which has a hook"):
        Pipeline(plan_of("two"), model, functional.mse_loss)


def test_layers_split_by_outputs_train_as_whole_layers_do(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tables()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    graph = capture(model, tables_batch(0)[0])
    plan = plan_for(split_ops(graph, ["bag:2", "rows:2", "wide:3", "end"]), TABLES, BATCH)
    optimizer = adam([*twin.parameters()])
    with Pipeline(plan, model, functional.mse_loss, adam) as pipeline, Checkpoints(pipeline, tmp_path) as checkpoints:
        for step in range(3):
            inputs, targets = tables_batch(step)
            optimizer.zero_grad()
            loss = functional.mse_loss(twin(**inputs), targets)
            loss.backward()
            optimizer.step()
            assert pipeline.step(inputs, targets) == pytest.approx(loss.item(), rel=1e-6)
        gradients = pipeline.gradients()
        checkpoints.save()
    assert {name for name in gradients if name.startswith("wide")} == {
        *("wide.weight[0:2]", "wide.weight[2:4]", "wide.weight[4:7]"),
        *("wide.bias[0:2]", "wide.bias[2:4]", "wide.bias[4:7]"),
    }
    assert {"bag.weight[:, 0:3]", "bag.weight[:, 3:6]", "rows.weight[:, 0:2]"} <= gradients.keys()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-4, atol=1e-6, msg=name)
    whole = plan_for(graph, [([*graph.order], [0], 4)], BATCH)
    with Pipeline(whole, third, functional.mse_loss, adam) as pipeline:
        Checkpoints(pipeline, tmp_path).load()
        for name, parameter in third.named_parameters():
            assert torch.equal(parameter, model.get_parameter(name)), name
