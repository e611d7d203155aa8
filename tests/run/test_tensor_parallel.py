"""Ranks that share each replica of a stage train as the whole model does in plain PyTorch, in double precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import run_ranks, values
from run_tensor_parallel import Cut, train, train_all, train_plainly

from graphpipe.graph import ParameterSlice

GPT_TWO: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2, 3], 2, 1),
]
"""Two stages of two ranks each."""
GPT_REPLICAS: Cut = [(["*"], [0, 1, 2, 3], 2, 2)]
"""One stage: two replicas of two ranks."""
GPT_UNEQUAL: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2], 1, 1),
]
"""Two ranks that share a stage, and one that does not."""
LLAMA_TWO: Cut = [
    (["model.embed_tokens*", "model.layers.0*"], [0, 1], 2, 2),
    (["model.layers.1*", "lm_head*"], [2, 3], 2, 2),
]
CASES: list[tuple[str, Cut]] = [("gpt", GPT_TWO), ("gpt", GPT_REPLICAS), ("gpt", GPT_UNEQUAL), ("llama", LLAMA_TWO)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Return what every rank of every case has computed, by rank."""
    return values(run_ranks(train_all, 4, tmp_path_factory.mktemp("ranks"), CASES))


@pytest.mark.parametrize("case", range(len(CASES)), ids=["two stages", "replicas", "unequal", "llama"])
def test_ranks_that_share_layers_train_as_plain_pytorch(trained: list[list[dict[str, Any]]], case: int) -> None:
    plain = train_plainly(CASES[case][0])
    for rank, found in enumerate(each[case] for each in trained):
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-12)
        assert found["norms"] == pytest.approx(plain["norms"], rel=1e-12)
        assert found["evaluated"] == pytest.approx(plain["evaluated"], rel=1e-12)
        for name, tensor in plain["state"].items():
            torch.testing.assert_close(found["state"][name], tensor, rtol=1e-11, atol=1e-12, msg=f"{rank} {name}")
        for name, gradient in found["gradients"].items():
            piece = ParameterSlice.parse(name)
            wanted = plain["gradients"][piece.parameter if piece else name]
            wanted = wanted.narrow(piece.dimension, piece.start, piece.stop - piece.start) if piece else wanted
            torch.testing.assert_close(gradient, wanted, rtol=1e-11, atol=1e-13, msg=f"{rank} {name}")


def test_a_rank_holds_about_half_of_the_parameters(trained: list[list[dict[str, Any]]]) -> None:
    whole = sum(each.numel() for each in train_plainly("gpt", steps=1)["gradients"].values())
    assert sum(each[0]["held"] for each in trained) <= 2 * 0.55 * 2 * whole
    assert all(each[1]["held"] <= 0.62 * whole for each in trained)  # norms, biases and positions are whole


def test_one_process_computes_the_whole_model() -> None:
    found, plain = train("gpt", GPT_TWO), train_plainly("gpt")
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-12)


def test_a_checkpoint_of_shared_layers_continues_under_another_plan(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    values(run_ranks(train, 4, tmp_path / "first", "gpt", GPT_TWO, 2, folder))
    plain, alone = train_plainly("gpt", 4), train("gpt", GPT_UNEQUAL, 2, "", folder)
    assert alone["losses"] == pytest.approx(plain["losses"][2:], rel=1e-12)
    (found, *_) = values(run_ranks(train, 4, tmp_path / "second", "gpt", GPT_REPLICAS, 2, "", folder))
    assert found["losses"] == pytest.approx(plain["losses"][2:], rel=1e-12)
