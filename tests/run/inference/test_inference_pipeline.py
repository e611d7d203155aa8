"""Requests are answered in order, with the bits of the whole model, on 1, 2 and 4 ranks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_inference import answer, answer_from, model, plan, requests
from run_ranks import run_ranks, values
from safetensors.torch import save_file
from torch import Tensor

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.rehearsal import rehearse_plan
from graphpipe.run.inference.inference_pipeline import InferencePipeline
from graphpipe.run.rehearse.scaled_plan import Limits

SIZES = (3, 1, 9, 4, 4, 2)
"""23 samples: windows of 8, 8 and 7, which micro-batches of 4 compute."""
WORKING = 2
"""The last window is 7 samples: micro-batches of 4 and 3."""


def expected(given: list[Tensor]) -> list[Tensor]:
    """Return the whole model's answers, computed in the same micro-batches."""
    module, rows = model().eval(), torch.cat(given)
    with torch.no_grad():
        found = torch.cat([module(rows[at : at + 4]) for at in range(0, len(rows), 4)])
    return list(found.split([len(each) for each in given]))


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_answers_are_the_models_bitwise(ranks: int, tmp_path: Path) -> None:
    found = values(run_ranks(answer, ranks, tmp_path, SIZES, 4 if ranks == 1 else ranks))
    assert [each is not None for each in found].count(True) == 1  # the last stage's rank
    answers = next(each for each in found if each is not None)
    for (outputs, failed), right in zip(answers, expected(requests(SIZES)), strict=True):
        assert not failed
        assert torch.equal(outputs, right)


def test_each_rank_reads_the_weights_of_its_own_stages(tmp_path: Path) -> None:
    save_file(model().state_dict(), tmp_path / "given.safetensors")
    found = values(run_ranks(answer_from, 2, tmp_path / "ranks", SIZES, 2, str(tmp_path / "given.safetensors")))
    for outputs, right in zip(found[1][0], expected(requests(SIZES)), strict=True):
        assert torch.equal(outputs, right)
    assert [held for _, held in found] == [
        ["0.layer.weight", "0.layer.bias", "1.1.weight", "1.1.bias"],
        ["2.weight", "2.bias", "3.weight", "3.bias"],
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sample_that_fails_is_named_and_costs_no_other(ranks: int, tmp_path: Path) -> None:
    marked = [(0, 1), (2, 5)]
    found = values(run_ranks(answer, ranks, tmp_path, SIZES, 2, marked))
    answers = next(each for each in found if each is not None)
    for number, ((outputs, failed), right) in enumerate(zip(answers, expected(requests(SIZES)), strict=True)):
        bad = [sample for request, sample in marked if request == number]
        assert [sample for sample, _ in failed] == bad
        assert all("stage 's0': " in reason and "a marked sample" in reason for _, reason in failed)
        good = [sample for sample in range(len(right)) if sample not in bad]
        assert torch.equal(outputs[good], right[good])


def test_a_request_of_another_shape_fails_alone() -> None:
    module = model()
    with InferencePipeline(plan(module, 1), module) as pipeline:
        answers = list(pipeline.map([torch.zeros(2, 6), torch.zeros(2, 7), torch.zeros(3, 6)]))
    shapes = [None if each is None or each.outputs is None else tuple(each.outputs.shape) for each in answers]
    assert shapes == [(2, 5), None, (3, 5)]
    assert answers[1] is not None
    assert [each.sample for each in answers[1].failed] == [0, 1]
    assert answers[1].samples == 2  # it counted as one, and a file of answers had too few rows
    assert "float32[7], the plan was made for" in answers[1].failed[1].reason


def test_a_slow_reader_holds_the_requests_back() -> None:
    """A window is 8 samples: before the first answers are read, no more than two requests of 4 are."""
    taken = 0

    def given() -> Iterator[Tensor]:
        nonlocal taken
        for each in requests([4] * 10):
            taken += 1
            yield each

    module = model()
    with InferencePipeline(plan(module, 2), module) as pipeline:
        answers = pipeline.map(given())
        next(answers)
        assert taken == WORKING
        assert len(list(answers)) == 9


def test_the_models_mode_is_left_alone_and_no_gradient_is_kept() -> None:
    module = model().train()
    with InferencePipeline(plan(module, 2), module) as pipeline:
        (found,) = pipeline.map([torch.zeros(2, 6)])
    assert found is not None
    assert not found.outputs.requires_grad
    assert all(each.training for each in module.modules())


def test_a_plan_that_trains_is_refused() -> None:
    module = model()
    graph = gp.capture(module, (torch.zeros(4, 6),))
    cluster = gp.Cluster.preset("local:1")
    training = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    with pytest.raises(InvalidInput, match="Plan with inference=True"):
        InferencePipeline(training, module)


def test_a_plan_for_inference_does_not_train_and_is_not_rehearsed() -> None:
    # The rehearsal ended with "KeyError: (0, 0, 'optimizer', -1)" of a rank.
    module = model()
    answering = plan(module, 1)
    with pytest.raises(InvalidInput, match=r"the plan is for inference.*InferencePipeline"):
        gp.Pipeline(answering, module, lambda output, targets: output.sum())
    with pytest.raises(InvalidInput, match=r"the plan is for inference.*InferencePipeline"):
        rehearse_plan(answering, Limits())
