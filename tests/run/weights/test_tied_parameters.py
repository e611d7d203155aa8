"""Stages that share parameters train them as one: gradients are summed and counted once, and all copies stay equal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import run_ranks, values
from run_shared import CUTS, batch, build, resume, save, train, train_from_unequal_weights, train_unpartitioned
from safetensors.torch import load_file
from torch import nn

from graphpipe.run.checkpoint.folder import newest_valid
from graphpipe.run.export.export_weights import export_weights
from graphpipe.run.weights.tied_parameters import TiedParameters

TIED = "source.weight"


def test_all_copies_in_a_process_get_the_weights_and_those_that_are_updated_a_gradient_each() -> None:
    first, updated, other = (nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0, 3.0))
    first.grad, updated.grad, other.grad = (torch.full((2,), value) for value in (1.0, 10.0, 100.0))
    tied = TiedParameters(
        name="s0",
        copies=((first, updated, other),),
        updated=frozenset({id(first), id(updated)}),
        ranks=(0,),
        source=0,
    )
    world: Any = None  # There is one rank.
    tied.sum_gradients(world)
    assert first.grad.tolist() == updated.grad.tolist() == [111.0] * 2
    assert other.grad is None
    first.grad.zero_()  # Each optimizer clips its own.
    assert updated.grad.tolist() == [111.0] * 2
    tied.align(world)
    assert [each.tolist() for each in (updated, other)] == [[1.0] * 2] * 2


def ranks_of(cut: str) -> int:
    return len({device for _, devices, _ in CUTS[cut] for device in devices})


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, each in found.items():
        torch.testing.assert_close(
            each, expected[name], rtol=1e-5, atol=1e-6, msg=lambda message, n=name: f"{n}: {message}"
        )


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("cut", CUTS)
def test_one_rank_trains_like_the_unpartitioned_model(cut: str, clip_norm: float | None) -> None:
    pipeline, model = build(cut)
    assert {name for each in pipeline.plan.tied_gradients for name in each.parameters} >= {TIED, "mix.weight"}
    assert model.score.weight is model.source.weight
    expected, found = train_unpartitioned(4, clip_norm), train(cut, 4, {"clip_norm": clip_norm})
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["gradients"].keys() == expected["gradients"].keys()
    assert_close(found["gradients"], expected["gradients"])
    assert_close(found["state"], expected["state"])


@pytest.mark.parametrize(("cut", "clip_norm"), [("four", 0.1), ("unequal", 0.1), ("crossed", None), ("beside", 0.1)])
def test_every_rank_with_a_tied_parameter_makes_the_same_update(
    cut: str, clip_norm: float | None, tmp_path: Path
) -> None:
    expected = train_unpartitioned(3, clip_norm)
    together = values(run_ranks(train, ranks_of(cut), tmp_path, cut, 3, {"clip_norm": clip_norm}))
    held: list[torch.Tensor] = []
    for rank in together:
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert_close(rank["gradients"], expected["gradients"])
        assert_close(rank["state"], expected["state"])
        held += [rank["own"][TIED]] if TIED in rank["gradients"] else []
    assert len(held) > 1
    assert all(torch.equal(each, held[0]) for each in held)


def test_ranks_with_other_initial_weights_are_refused(tmp_path: Path) -> None:
    """The first stage's replica 0 set the weights of all, so a file that was missing on one host went unnoticed."""
    for outcome in run_ranks(train_from_unequal_weights, 3, tmp_path, "unequal"):
        assert "initial weights" in outcome.error


@pytest.mark.parametrize("cut", ["four", "unequal"])
def test_split_backwards_give_the_same_gradients(cut: str) -> None:
    expected, found = train_unpartitioned(2), train(cut, 2, {"schedule": "zb-h1"})
    assert_close(found["gradients"], expected["gradients"])
    assert_close(found["state"], expected["state"])
    pipeline, _ = build(cut, schedule="zb-h1")
    pipeline.step(*batch())
    assert "split" in pipeline.backwards().values()


def test_dropout_is_the_same_on_one_rank_and_on_several(tmp_path: Path) -> None:
    single = train("unequal", 2, {"dropout": 0.3})
    assert single["losses"] != train("unequal", 2, {})["losses"]
    for rank in values(run_ranks(train, 3, tmp_path, "unequal", 2, {"dropout": 0.3})):
        assert rank["losses"] == pytest.approx(single["losses"], rel=1e-6)


@pytest.mark.parametrize(
    ("saved", "loaded"), [("unequal", "four"), pytest.param("four", "unequal", marks=pytest.mark.slow)]
)
def test_checkpoints_hold_tied_parameters_once_and_load_into_any_plan(saved: str, loaded: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    values(run_ranks(save, ranks_of(saved), tmp_path / "save", saved, str(folder)))
    found = newest_valid(folder)
    files = [load_file(path) for path in sorted(found.path.glob("*.safetensors"))]
    names = [name for file in files for name in file]
    assert len(names) == len(set(names))
    assert {TIED, f"{TIED}:exp_avg", "mix.weight"} < set(names)
    assert found.manifest.aliases == {"target.weight": TIED, "score.weight": TIED}
    export_weights(folder, tmp_path / "model.safetensors")
    assert set(load_file(tmp_path / "model.safetensors")) == set(build(saved)[1].state_dict())
    expected = train_unpartitioned(3)
    for rank in values(run_ranks(resume, ranks_of(loaded), tmp_path / "load", loaded, str(folder))):
        assert rank["losses"] == pytest.approx(expected["losses"][1:], rel=1e-5)
        assert_close(rank["state"], expected["state"])
