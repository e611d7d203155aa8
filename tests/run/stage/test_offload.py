"""A stage that offloads saved tensors trains, bit for bit, like a stage that keeps them, in any mixture."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from run_chain import INTERLEAVED, train_chain, train_mixed_in_bf16
from run_ranks import run_ranks, values

from graphpipe.costs import Recompute

TOGETHER = [(["a", "b", "c"], [0], 2), (["d"], [1], 2)]
CUTS = {"interleaved": INTERLEAVED, "together": TOGETHER}
MIXTURES: list[tuple[str, dict[int, Recompute], dict[int, tuple[str, ...]]]] = [
    ("interleaved", {}, {0: ("a",), 1: ("b",), 2: ("c",), 3: ("d",)}),
    ("interleaved", {0: "full", 1: ("b",)}, {2: ("c",)}),
    ("together", {0: ("a", "c")}, {0: ("b",)}),
    ("together", {0: ("b",)}, {0: ("a", "c")}),
    ("together", {1: "full"}, {0: ("a", "b", "c")}),
]


@cache
def keeping(cut: str, schedule: str) -> dict[str, Any]:
    return train_chain(CUTS[cut], schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("cut", "recompute", "offload"), MIXTURES)
def test_any_mixture_has_the_gradients_of_keeping(
    cut: str, recompute: dict[int, Recompute], offload: dict[int, tuple[str, ...]], schedule: str
) -> None:
    kept, mixed = keeping(cut, schedule), train_chain(CUTS[cut], schedule, recompute, offload=offload)
    assert mixed["losses"] == kept["losses"]
    for what in ("gradients", "state"):
        assert all(torch.equal(mixed[what][name], tensor) for name, tensor in kept[what].items())
    kinds = {span["kind"] for span in mixed["trace"]["spans"]}
    assert {"evict", "fetch"} <= kinds


def test_two_ranks_train_like_one_in_bf16(tmp_path: Path) -> None:
    recompute: dict[int, Recompute] = {0: ("a",)}
    offload = {0: ("b", "c")}
    kept = train_mixed_in_bf16(TOGETHER, {}, {})
    assert train_mixed_in_bf16(TOGETHER, recompute, offload)["losses"] == kept["losses"]
    for rank in values(run_ranks(train_mixed_in_bf16, 2, tmp_path, TOGETHER, recompute, offload)):
        assert rank["losses"] == kept["losses"]
        assert all(torch.equal(tensor, kept["state"][name]) for name, tensor in rank["state"].items())
