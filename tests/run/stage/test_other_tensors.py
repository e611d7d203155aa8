"""Models that read literals and plain tensors, or have sparse gradients, train like the unpartitioned model."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_plans import plan_for
from run_ranks import run_ranks, values
from run_tensors import Averaged, Taught, train, train_both, train_unpartitioned
from torch import nn
from torch.nn import functional

from graphpipe.model.capture.capture import capture
from graphpipe.run import Pipeline


def assert_alike(found: dict[str, Any], *, sparse: bool = False) -> None:
    losses, evaluation, state = train_unpartitioned(sparse=sparse)
    for label, (their_losses, their_evaluation, their_state) in found.items():
        assert their_losses == pytest.approx(losses, rel=1e-5), label
        assert their_evaluation == pytest.approx(evaluation, rel=1e-5), label
        assert their_state.keys() == state.keys()
        for name, each in state.items():
            torch.testing.assert_close(their_state[name], each, rtol=1e-5, atol=1e-6, msg=f"{label}: {name}")


def test_constants_are_the_same_in_replicas_of_one_process() -> None:
    """fx made a buffer of every constant when a replica was copied: ViT-MAE failed after its first update.

    The error was "zip() argument 2 is longer than argument 1", after weights had changed.
    """
    for recompute in ("none", "full"):
        assert_alike(train(["allreduce"], (0, 1), recompute))


def test_sparse_gradients_are_summed_and_count_in_the_norm() -> None:
    """The norm of all gradients failed with "unsupported memory format option Contiguous" for `sparse=True`."""
    for clip_norm in (None, 1e6):
        assert_alike(train(["allreduce"], (0, 1), sparse=True, clip_norm=clip_norm), sparse=True)


def test_constants_and_sparse_gradients_beside_other_synchronisations(tmp_path: Path) -> None:
    """The copy of a model that `fsdp2` shards had buffers that the model has not, and its result was lost at the end.

    A stage that trains a sparse embedding has one replica here, and the next stage has two.
    """
    for constants, sparse in values(run_ranks(train_both, 2, tmp_path, ["ddp", "fsdp2"], seconds=60)):
        assert_alike(constants)
        assert_alike(sparse, sparse=True)


@pytest.mark.parametrize("in_place", ["no", "inside", "outside"])
def test_blocks_without_gradients_may_be_in_any_forward(in_place: str) -> None:
    """`torch.no_grad()` in the root's forward was refused: only a submodule can become one operator.

    If an operation of that forward was in place, torch's decompositions forgot the block, and gradients were wrong.
    """
    torch.manual_seed(0)
    model, x, targets = Taught(in_place), torch.randn(8, 4), torch.randn(8, 2)
    twin = copy.deepcopy(model)
    graph = capture(model, x)
    assert {"teacher.0", "rate", "head"} <= {op.name for op in graph.ops}
    plan = plan_for(graph, [([op.name], [number], 8) for number, op in enumerate(graph.ops)], 8)
    pipeline = Pipeline(plan, model, functional.mse_loss)
    loss = functional.mse_loss(twin(x), targets)
    loss.backward()
    assert pipeline.step(x, targets) == loss.item()
    found = pipeline.gradients()
    for name, parameter in twin.named_parameters():
        gradient = found[name]
        if parameter.grad is None or gradient is None:
            assert gradient is parameter.grad, name
        else:
            assert torch.equal(gradient, parameter.grad), name


@pytest.mark.parametrize(
    "recompute", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in ("full", "parts"))]
)
def test_the_models_own_forward_may_update_buffers(recompute: str) -> None:
    """An average that the root's forward updates was refused, because it cannot become one operator.

    As in every pipeline, it is updated once per micro-batch.
    """
    torch.manual_seed(0)
    model, x, targets = Averaged(), torch.randn(12, 4), torch.randn(12, 2)
    twin = copy.deepcopy(model)
    graph = capture(model, x)
    plan = plan_for(graph, [([op.name], [number], 4) for number, op in enumerate(graph.ops)], 12)
    assert len(plan.stages) > 1
    parts = [stage.ops if recompute == "parts" else recompute for stage in plan.stages]
    stages = (replace(stage, recompute=part) for stage, part in zip(plan.stages, parts, strict=True))
    pipeline = Pipeline(replace(plan, stages=tuple(stages)), model, functional.mse_loss)
    for _ in range(2):
        pipeline.step(x, targets)
    for rows, wanted in zip([*x.split(4)] * 2, [*targets.split(4)] * 2, strict=True):
        functional.mse_loss(twin(rows), wanted).backward()
    assert twin.count == 6
    assert_same_buffers(model, twin)
    _, outputs = pipeline.evaluate(x[:4])
    assert torch.equal(outputs, twin.eval()(x[:4]))
    assert_same_buffers(model, twin)


def assert_same_buffers(model: nn.Module, twin: nn.Module) -> None:
    for name, wanted in twin.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), wanted, rtol=1e-6, atol=1e-7, msg=name)
