"""Requests are answered by ranks that share replicas, as the whole model answers them."""

from typing import Any

import pytest
import torch
from models_to_share import MODELS
from run_ranks import run_ranks, values
from run_tensor_parallel import Cut, answer_all, plan_of, requests

import graphpipe as gp

GPT: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2, 3], 2, 4),
]
UNEQUAL: Cut = [
    (["embedding", "attention"], [2], 1, 2),
    (["feed_forward", "last*", "head*"], [0, 1], 2, 2),
]
CASES: dict[str, tuple[str, Cut, list[tuple[int, int]]]] = {
    "two stages": ("gpt", GPT, []),
    "unequal": ("grouped", UNEQUAL, []),
    "words that do not exist": ("gpt", GPT, [(0, 1), (2, 3)]),
}


def planned(case: str) -> tuple[str, gp.Plan, list[tuple[int, int]]]:
    """Return a case with its plan, which ranks then need not make."""
    name, cut, bad = CASES[case]
    return name, plan_of(name, cut, inference=True), bad


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return what every rank of every case has answered: the ranks are started once."""
    by_rank = values(run_ranks(answer_all, 4, tmp_path_factory.mktemp("ranks"), [planned(name) for name in CASES]))
    return {name: [found[at] for found in by_rank] for at, name in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_share_layers_answer_as_the_whole_model(answered: dict[str, list[Any]], case: str) -> None:
    name, cut, bad = CASES[case]
    (answers,) = [each for each in answered[case] if each is not None]
    assert answered[case].index(answers) == cut[-1][1][0], "the first rank of the last stage answers"
    model = MODELS[name]().double().eval()
    for number, ((outputs, failed), tokens) in enumerate(zip(answers, requests(), strict=True)):
        assert failed == [sample for request, sample in bad if request == number]
        good = [sample for sample in range(len(tokens)) if sample not in failed]
        with torch.no_grad():
            torch.testing.assert_close(outputs[good], model(tokens[good]), rtol=1e-12, atol=1e-12)


def test_one_process_answers_by_the_plan_of_several_ranks() -> None:
    (answers,) = answer_all([planned("words that do not exist")])
    assert [failed for _, failed in answers] == [[1], [], [3]]
