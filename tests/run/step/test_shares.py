"""Ranks that are given only the rows that their stages consume train as if every rank had whole mini-batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from latin_square import latin_square
from run_models import BATCH, STAGES, fan_batch
from run_ranks import run_ranks, values
from run_shares import LOSSES, SAMPLES, evaluate_others, pipeline_of, share_of, step_with_others, train
from torch import Tensor

import graphpipe as gp
from graphpipe.run.stage.shares.batch_share import BatchShare

pytestmark = pytest.mark.timeout(120)
EXACT = (0.0, 0.0)
ROUNDED = (1e-5, 1e-6)
"""Relative and absolute differences."""


def assert_alike(found: dict[str, Any], expected: dict[str, Any], within: tuple[float, float]) -> None:
    rtol, atol = within
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=rtol, atol=atol)
    assert found["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-5)
    for name in ("outputs", "targets"):
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol)
    for name, gradient in found["gradients"].items():
        torch.testing.assert_close(gradient, expected["gradients"][name], rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize(("cut", "loss"), latin_square([cut for cut in STAGES if cut != "whole"], LOSSES))
def test_one_rank_needs_everything(cut: str, loss: str) -> None:
    found, whole = train(cut, loss, True), train(cut, loss, False)
    assert_alike(found, whole, EXACT)
    assert found["inputs"] == {name: [*range(BATCH)] for name in ("x", "tokens")}
    assert found["rows"] == [*range(BATCH)]
    assert len(found["targets"]) == SAMPLES


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=pytest.mark.slow if loss in ("mean", "sum") else []) for loss in LOSSES]
)
def test_towers_and_a_head_on_ranks_of_their_own(loss: str, tmp_path: Path) -> None:
    found, whole = values(run_ranks(train, 4, tmp_path, "four", loss, True)), train("four", loss, False)
    for rank in found:
        assert_alike(rank, whole, ROUNDED)
    everything = [*range(BATCH)]
    assert [rank["inputs"] for rank in found] == [{"x": everything}, {}, {"tokens": everything}, {}]
    assert [rank["rows"] for rank in found] == [[], [], [], everything]


@pytest.mark.parametrize("loss", ["ignored", pytest.param("mean", marks=pytest.mark.slow)])
def test_replicas_read_their_own_rows_and_weigh_their_losses_together(loss: str, tmp_path: Path) -> None:
    found = values(run_ranks(train, 4, tmp_path / "shares", "replicas", loss, True))
    whole = values(run_ranks(train, 4, tmp_path / "whole", "replicas", loss, False))
    for rank, same in zip(found, whole, strict=True):
        assert_alike(rank, same, ROUNDED)
    assert found[0]["inputs"] == {"x": [0, 1, 4, 5, 8, 9]}
    assert found[3]["inputs"] == {"tokens": [3, 4, 5, 9, 10, 11]}
    assert found[3]["rows"] == [3, 4, 5, 9, 10, 11]


def test_without_a_flush_a_rank_with_the_loss_needs_the_targets_that_weigh_it(tmp_path: Path) -> None:
    found = values(run_ranks(train, 4, tmp_path / "shares", "replicas", "ignored", True, "stash"))
    whole = values(run_ranks(train, 4, tmp_path / "whole", "replicas", "ignored", False, "stash"))
    for rank, same in zip(found, whole, strict=True):
        assert_alike(rank, same, ROUNDED)
    assert found[2]["inputs"] == {"tokens": [0, 1, 2, 6, 7, 8]}
    assert found[2]["rows"] == [*range(BATCH)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("last sample", "rank {other} was given its share of 12 samples {first}, ... (samples so far"),
        ("whole", "its share of 12 samples"),
        ("missing rows", "rows, this rank needs"),
    ],
)
def test_ranks_notice_other_samples_at_the_step_at_which_they_are_given(how: str, said: str, tmp_path: Path) -> None:
    for rank, message in enumerate(values(run_ranks(step_with_others, 2, tmp_path, 2, how))):
        assert message.startswith("2 InvalidInput: ")
        assert said.format(other=1 - rank, first="200, 201, 202, 203") in message


def test_an_evaluation_of_other_samples_is_refused(tmp_path: Path) -> None:
    for message in values(run_ranks(evaluate_others, 2, tmp_path)):
        assert message.startswith("InvalidInput: mini-batch: ")


def changed(share: BatchShare, **what: Any) -> BatchShare:
    return BatchShare(**({"samples": share.samples, "inputs": share.inputs, "targets": share.targets} | what))


def test_what_a_share_lacks_or_has_too_much_of_is_named() -> None:
    pipeline = pipeline_of("four", "mean")
    share = share_of(pipeline, 0)
    x: Tensor = share.inputs["x"]
    tokens = share.inputs["tokens"]
    for sentence, wrong in {
        "'y'": changed(share, inputs={"x": x, "tokens": tokens, "y": x}),
        "input 'tokens' is missing": changed(share, inputs={"x": x}),
        "input 'x' has 11 rows, this rank needs 12": changed(share, inputs={"x": x[1:], "tokens": tokens}),
        "target 0 has 3 rows": changed(share, targets=torch.zeros(3)),
        "in the example it is float32": changed(share, inputs={"x": x.double(), "tokens": tokens}),
        "in the example it is int64[4]": changed(share, inputs={"x": x, "tokens": tokens[:, :3]}),
        "has 13 samples, the plan is for 12": changed(share, samples=[*share.samples, share.samples[0]]),
        "has no samples": changed(share, samples=[]),
        "not a tensor": changed(share, inputs={"x": x.tolist(), "tokens": tokens}),
    }.items():
        with pytest.raises(gp.InvalidInput) as caught:
            pipeline.step(wrong)
        assert sentence in str(caught.value)
    with pytest.raises(gp.InvalidInput, match="beside a share"):
        pipeline.step(share, torch.zeros(12))
    assert pipeline.step(share) > 0


def test_a_share_without_targets_gives_outputs_alone() -> None:
    pipeline = pipeline_of("four", "mean")
    inputs, _ = fan_batch(5)
    share = changed(pipeline.needs(5).cut(range(5), inputs), with_targets=False)
    loss, outputs = pipeline.evaluate(share)
    assert loss is None
    torch.testing.assert_close(outputs, pipeline.evaluate(inputs)[1])
    assert pipeline.evaluate_all([share]) is None
    assert pipeline.evaluate_all([]) is None
