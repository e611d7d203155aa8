"""Several ranks compute, bit for bit, what one rank computes of the same plan."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from run_jobs import rejoin_world
from run_models import STAGES
from run_ranks import run_ranks, values
from run_scenarios import differ, train, train_beside_idle_ranks, train_from_unequal_weights


def ranks_of(cut: str) -> int:
    return len({device for _, devices, _ in STAGES[cut] for device in devices})


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("cut", "options"),
    [
        ("four", {"dropout": 0.3, "clip_norm": 0.1}),
        ("replicas", {"dropout": 0.3, "norm": True, "schedule": "gpipe"}),
        ("shared", {"dropout": 0.3}),
        ("whole", {"dropout": 0.3, "head": "contrast", "norm": True}),
        ("four", {"dropout": 0.3, "bursts": (1, 1, 2, 3), "debug": True}),
    ],
)
def test_ranks_equal_one_rank_bit_for_bit(cut: str, options: dict[str, Any], tmp_path: Path) -> None:
    alone = train(cut, 3, options)
    together = values(run_ranks(train, ranks_of(cut), tmp_path, cut, 3, options))
    seen: set[str] = set()
    for rank in together:
        assert rank["losses"] == alone["losses"]
        assert rank["evaluation"] == alone["evaluation"]
        assert torch.equal(rank["outputs"], alone["outputs"])
        assert_equal(rank["state"], alone["state"])
        assert_equal(rank["gradients"], alone["gradients"])
        seen |= rank["gradients"].keys()
    assert seen == alone["gradients"].keys()


def test_replica_0_decides_the_weights(tmp_path: Path) -> None:
    together = values(run_ranks(train_from_unequal_weights, 4, tmp_path, "replicas"))
    for rank in together[1:]:
        assert rank["losses"] == together[0]["losses"]
        assert_equal(rank["state"], together[0]["state"])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("seed", "rank 1 has another seed"),
        ("schedule", "rank 1 has another plan"),
        ("clip_norm", "rank 1 has another limit of the gradients than rank 0 (1.0 against 2.0)"),
        ("loss_fn", "rank 1 has another loss_fn than rank 0"),
        ("model", "rank 1 has another model, with equal shapes, than rank 0"),
    ],
)
def test_ranks_with_different_plans_or_options_are_refused(what: str, message: str, tmp_path: Path) -> None:
    for outcome in run_ranks(differ, 4, tmp_path, "replicas", what):
        assert outcome.error.startswith("InvalidInput")
        assert message in outcome.error


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    for outcome in run_ranks(train, 3, tmp_path, "four", 1, {}):
        assert "the plan uses 4 devices, the world has 3 ranks. Start 4 processes" in outcome.error


def test_ranks_without_a_stage_wait_along_and_know_the_results(tmp_path: Path) -> None:
    """A world larger than the plan's devices was refused."""
    alone = train_beside_idle_ranks(str(tmp_path / "alone"))
    together = values(run_ranks(train_beside_idle_ranks, 3, tmp_path, str(tmp_path / "together"), seconds=60))
    for rank, runs in enumerate(together):
        for idle, (found, warned), (wanted, _) in zip((2, 0), runs, alone, strict=True):
            assert found["losses"] == wanted["losses"]
            assert found["evaluation"] == wanted["evaluation"]
            assert torch.equal(found["outputs"], wanted["outputs"])
            assert_equal(found["state"], wanted["state"])
            sentence = f"rank {idle} of 3 only waits for the others: the plan uses 2 devices"
            assert warned == ([sentence] if rank == 0 else [])
    assert all(not warned for _, warned in alone)


def test_a_second_world_ignores_the_first_worlds_keys_in_an_agents_store(tmp_path: Path) -> None:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    assert values(run_ranks(rejoin_world, 2, tmp_path, str(store.port))) == [[1.0, 3.0]] * 2
