"""Training without a flush: every policy equals a reference with explicit versions of the whole model, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from latin_square import latin_square
from run_ranks import run_ranks, values
from run_versions import CUTS, OPTIMIZERS, train_cases, train_reference, train_segments

from graphpipe.plans.stage import Predictor, WeightPolicy

PREDICTORS: tuple[Predictor, ...] = ("pipeoptim", "spectrain", "xpipe")
STORED: tuple[WeightPolicy, ...] = ("stash", "vertical-sync", "double-buffer", "moving-average")


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"]
    for name, weight in expected["weights"].items():
        assert torch.equal(found["weights"][name], weight), name


@pytest.mark.parametrize(
    ("cut", "policy", "optimizer", "schedule"),
    latin_square([cut for cut in CUTS if cut != "chain"], STORED, [("sgd", "1f1b"), ("adamw", "zb-h1")]),
)
def test_stored_versions_equal_the_reference(cut: str, policy: WeightPolicy, optimizer: str, schedule: str) -> None:
    found = train_segments(cut, policy, optimizer=optimizer, schedule=schedule)
    assert_same(found, train_reference(cut, policy, optimizer))


@pytest.mark.parametrize(("policy", "optimizer", "schedule"), latin_square(STORED, OPTIMIZERS, ["1f1b", "zb-h1"]))
def test_every_optimizer_and_schedule_on_a_chain(policy: WeightPolicy, optimizer: str, schedule: str) -> None:
    expected = train_reference("chain", policy, optimizer)
    assert_same(train_segments("chain", policy, optimizer=optimizer, schedule=schedule), expected)


@pytest.mark.parametrize(
    ("cut", "predictor", "optimizer", "schedule"),
    latin_square(["chain", "diamond", "replicas"], PREDICTORS, [("sgd", "1f1b"), ("adam", "zb-h1"), ("adamw", "1f1b")]),
)
def test_predictions_equal_the_reference(cut: str, predictor: Predictor, optimizer: str, schedule: str) -> None:
    found = train_segments(cut, "predict", predictor, optimizer=optimizer, schedule=schedule)
    assert_same(found, train_reference(cut, "predict", optimizer, predictor))


CASES: dict[int, list[tuple[str, WeightPolicy, Predictor, str, str]]] = {
    2: [
        ("chain on two", "stash", "", "adamw", "zb-h1"),
        ("replicas", "stash", "", "sgd", "1f1b"),
        ("replicas", "vertical-sync", "", "adam", "zb-h1"),
        ("replicas", "double-buffer", "", "adamw", "1f1b"),
        ("replicas", "moving-average", "", "adam", "zb-h1"),
        ("replicas", "predict", "spectrain", "sgd", "1f1b"),
    ],
    4: [
        ("chain", "stash", "", "adam", "1f1b"),
        ("diamond", "stash", "", "adamw", "zb-h1"),
        ("diamond", "double-buffer", "", "adam", "1f1b"),
        ("replicas apart", "stash", "", "adam", "1f1b"),
        ("replicas apart", "vertical-sync", "", "sgd", "zb-h1"),
        ("replicas apart", "moving-average", "", "sgd", "1f1b"),
        ("diamond", "predict", "pipeoptim", "adam", "zb-h1"),
    ],
}


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_ranks_equal_the_reference(ranks: int, tmp_path: Path) -> None:
    outcomes = values(run_ranks(train_cases, ranks, tmp_path / "ranks", CASES[ranks]))
    for number, (cut, policy, predictor, optimizer, _) in enumerate(CASES[ranks]):
        expected = train_reference(cut, policy, optimizer, predictor)
        for outcome in outcomes:
            assert_same(outcome[number], expected)
