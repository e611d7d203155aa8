"""Every replica synchronisation gives the gradients and the training of the unpartitioned model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_shared
import torch
from builders import crossed
from run_checkpoints import STEPS
from run_ranks import run_ranks, values
from run_replica_syncs import (
    BY_LAYER,
    SYNCS,
    differ,
    reduce_some,
    refused,
    replaced_bytes,
    resume,
    save_and_resume,
    save_shared,
    state_bytes,
    train_all,
    train_smaller,
    train_smaller_unpartitioned,
    train_unpartitioned,
)
from run_short_memory import BATCH, large_layer, samples, train_plainly, train_planned

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.weights.check_sync import check_schedule
from graphpipe.schedule import Schedule
from graphpipe.schedule.lower import lower

RANKS = {"replicas": 4, "both": 4, "four": 4, "overlap": 3}
LONG = ("replicas", "both", "four")


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, each in found.items():
        torch.testing.assert_close(
            each, expected[name], rtol=1e-5, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}"
        )


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    for part in ("gradients", "state"):
        assert_close(found[part], expected[part])
    assert found["state"].keys() == expected["state"].keys()


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"][-len(found["losses"]) :]
    for name, each in expected["state"].items():
        assert torch.equal(found["state"][name], each), name


@pytest.mark.parametrize("cut", [pytest.param(cut, marks=pytest.mark.slow) if cut in LONG else cut for cut in RANKS])
def test_every_synchronisation_trains_like_the_unpartitioned_model(cut: str, tmp_path: Path) -> None:
    schedules = {"both": ["1f1b", "gpipe"], "four": ["gpipe"]}.get(cut, ["1f1b"])
    expected = train_unpartitioned()
    outcomes = values(run_ranks(train_all, RANKS[cut], tmp_path, cut, [*SYNCS], schedules, {}, seconds=200))
    for label in outcomes[0]:
        seen: set[str] = set()
        for outcome in outcomes:
            assert_alike(outcome[label], expected)
            seen |= outcome[label]["gradients"].keys()
        assert seen == expected["gradients"].keys(), label


def test_smaller_mini_batches_leave_some_replicas_without_a_sample(tmp_path: Path) -> None:
    """Only an evaluation could do that. Training refused every mini-batch that micro-batches did not divide."""
    sizes = [12, 7, 1]
    kinds, waiting = ["allreduce", "fsdp2", "allreduce, zero", "planned"], ["ddp", "fsdp2-layers"]
    expected = train_smaller_unpartitioned(sizes)
    for outcome in values(run_ranks(train_smaller, 4, tmp_path, "four", kinds + waiting, sizes, seconds=200)):
        for kind in kinds:
            assert outcome[kind]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
            assert_close(outcome[kind]["gradients"], expected["gradients"])
        for kind in waiting:
            assert "leave 3 of 7 samples for the last one of stage" in outcome[kind]
            assert "engine='allreduce'" in outcome[kind]


@pytest.mark.parametrize(
    ("cut", "schedules", "options"),
    [
        ("replicas", ["1f1b"], {}),
        pytest.param("both", ["1f1b", "gpipe"], {}, marks=pytest.mark.slow),
        ("four", ["1f1b"], {"recompute": True}),
    ],
)
def test_weights_gathered_layer_by_layer_train_like_the_unpartitioned_model(
    cut: str, schedules: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    expected = train_unpartitioned()
    for outcome in values(run_ranks(train_all, 4, tmp_path, cut, [*BY_LAYER], schedules, options, seconds=100)):
        for found in outcome.values():
            assert_alike(found, expected)


def test_recomputation_and_split_backwards_do_not_change_results(tmp_path: Path) -> None:
    expected = train_unpartitioned()
    for name, kinds, schedule, options in [
        ("recompute", ["ddp", "fsdp2"], "1f1b", {"recompute": True}),
        ("halves", ["fsdp2", "allreduce, zero"], "zb-h1", {}),
    ]:
        for outcome in values(
            run_ranks(train_all, 4, tmp_path / name, "both", kinds, [schedule], options, seconds=200)
        ):
            for found in outcome.values():
                assert_alike(found, expected)


def test_batch_norm_has_the_statistics_of_replica_0_everywhere(tmp_path: Path) -> None:
    options = {"norm": True}
    outcomes = values(
        run_ranks(train_all, 4, tmp_path, "replicas", ["allreduce", "ddp", "fsdp2"], ["1f1b"], options, seconds=200)
    )
    expected = outcomes[0]["allreduce, 1f1b"]
    assert any("running_mean" in name for name in expected["state"])
    for outcome in outcomes:
        for found in outcome.values():
            assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
            assert found["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
            assert_close(found["state"], expected["state"])


def test_shards_take_a_fraction_of_the_memory(tmp_path: Path) -> None:
    ranks = values(run_ranks(state_bytes, 4, tmp_path, "four", seconds=100))
    weights, gradients, slots = ranks[0]["allreduce"]
    assert all(rank["allreduce"] == rank["ddp"] == [weights, gradients, slots] for rank in ranks)
    assert slots == 2 * gradients  # AdamW
    for kind in ("allreduce, zero", "ddp, zero", "planned"):
        assert all(rank[kind][:2] == [weights, gradients] for rank in ranks)
        assert sum(rank[kind][2] for rank in ranks) == slots
        assert max(rank[kind][2] for rank in ranks) < 0.5 * slots
    for part, whole in enumerate((weights, gradients, slots)):
        assert sum(rank["fsdp2"][part] for rank in ranks) == whole
        assert max(rank["fsdp2"][part] for rank in ranks) < 0.4 * whole


def test_shards_take_the_place_of_whole_weights(tmp_path: Path) -> None:
    """Every replica with shards kept the whole weights of its stage too, in the list of what is synchronised."""
    for rank in values(run_ranks(replaced_bytes, 4, tmp_path, "four", seconds=100)):
        assert set(rank) == {0}


def test_a_model_that_fits_only_sharded_is_planned_and_trained(tmp_path: Path) -> None:
    model = large_layer()
    graph = gp.capture(model, samples(0)[0])
    roomy = gp.Cluster.resolve("local:2")
    # The first layer's weights, gradients and optimizer state are 3.8 times the bytes of all parameters.
    memory_bytes = 3.65 * sum(each.nbytes for each in model.parameters())
    cluster = replace(roomy, device_types=(replace(roomy.device_types[0], memory_bytes=memory_bytes),))
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH)
    assert [(stage.degree, stage.state) for stage in plan.stages] == [(2, "all")]
    plan.save(tmp_path / "plan.json")
    expected_losses, expected = train_plainly(3)
    for losses, found in values(run_ranks(train_planned, 2, tmp_path / "ranks", str(tmp_path / "plan.json"), 3)):
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_resumes_with_any_synchronisation_and_exactly_with_the_same(tmp_path: Path) -> None:
    kinds = ["allreduce", "fsdp2"]
    folder = str(tmp_path / "saved")
    for found in values(run_ranks(save_and_resume, 4, tmp_path / "four", "both", folder, kinds, seconds=200)):
        for saver in kinds:
            assert_same(found[f"{saver} -> {saver}"], found[saver])
            for loader in kinds:
                crossed = found[f"{saver} -> {loader}"]
                assert len(crossed["losses"]) == STEPS - 3
                assert crossed["losses"] == pytest.approx(found[saver]["losses"], rel=1e-5)
                assert_close(crossed["state"], found[saver]["state"])
        expected = found["allreduce"]
    for saver in kinds:
        single = resume("both", f"{folder}/{saver}", "allreduce")
        others = values(run_ranks(resume, 3, tmp_path / saver, "overlap", f"{folder}/{saver}", "fsdp2"))
        for found in (single, *others):
            assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
            assert_close(found["state"], expected["state"])


def test_tied_parameters_stay_whole_under_every_synchronisation(tmp_path: Path) -> None:
    expected = run_shared.train_unpartitioned(3, 0.1)
    for rank in values(run_ranks(save_shared, 2, tmp_path, [*SYNCS], str(tmp_path / "saved"), seconds=200)):
        for label, found in rank.items():
            assert found["losses"] == pytest.approx(expected["losses"][-len(found["losses"]) :], rel=1e-5), label
            assert_close(found["gradients"], expected["gradients"])
            assert_close(found["state"], expected["state"])


def test_replicas_in_one_process_are_summed_under_every_synchronisation() -> None:
    expected = train_unpartitioned()
    for found in train_all("replicas", [*SYNCS], ["1f1b"], {}).values():
        assert_alike(found, expected)


@pytest.mark.parametrize("kind", ["allreduce", "ddp", "fsdp2"])
def test_parameters_that_only_some_replicas_and_micro_batches_use_are_summed(kind: str, tmp_path: Path) -> None:
    for gradients in values(run_ranks(reduce_some, 2, tmp_path, kind)):
        assert gradients == [[26.0], [5.0], None]


def test_ranks_with_different_options_do_not_start(tmp_path: Path) -> None:
    split: dict[str, Any] = {"engine": "ddp", "schedule": "zb-h1"}
    pairs: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"engine": "ddp"}, {"engine": "fsdp2"}, "rank 1 has another engine than rank 0 (fsdp2 against ddp)"),
        ({}, {"shard_optimizer": True}, "rank 1 has another optimizer sharding than rank 0"),
        ({}, {"precision": "bf16"}, "rank 1 has another precision than rank 0 (bf16 against fp32)"),
        (split, split, "has 2 replicas, and engine 'ddp' needs whole backwards"),
    ]
    given = [(ours, theirs) for ours, theirs, _ in pairs]
    for outcome in values(run_ranks(differ, 4, tmp_path, "both", given)):
        for message, (_, _, expected) in zip(outcome, pairs, strict=True):
            assert expected in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fdsp2"}, "engine: unknown engine 'fdsp2'. Did you mean 'fsdp2'?"),
        ({"engine": "fsdp2", "shard_optimizer": True}, "shard_optimizer: is true, and engine 'fsdp2' shards the"),
        (
            {"engine": "fsdp2", "states": ("optimizer",)},
            "stage 'stem': the plan shards its optimizer state, and engine 'fsdp2' shards it itself. Choose engine=",
        ),
        (
            {"shard_optimizer": True, "states": ("whole", "all")},
            "stage 'left+right': the plan shards its weights, gradients and optimizer state, and shard_optimizer is",
        ),
        (
            {"shard_optimizer": True, "states": ("whole", "layers")},
            "stage 'left+right': the plan shards its weights, gradients and optimizer state, and shard_optimizer is",
        ),
        ({"precision": "bf32"}, "precision: unknown precision 'bf32'. Did you mean"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    assert refused("both", options).startswith(message)


def test_ddp_is_refused_where_its_sums_would_wait_for_ever() -> None:
    plan, text = crossed()
    lowered = lower(plan, Schedule.parse(text))
    placement = RankPlacement.of(plan, 3)
    with pytest.raises(InvalidInput, match=r"devices 'd1', 'd2' would wait .* forever: engine 'ddp' reduces inside"):
        check_schedule(("ddp",) * len(plan.stages), plan, (), placement, lowered)
    for engine in ("allreduce", "fsdp2"):
        check_schedule((engine,) * len(plan.stages), plan, (), placement, lowered)
    with pytest.raises(InvalidInput, match=r"rank \d hosts stage 's\d' and another one, and the engine exchanges in"):
        check_schedule(("fsdp2-layers",) * len(plan.stages), plan, (), placement, lowered)
    check_schedule(("ddp",) * len(plan.stages), plan, (), RankPlacement.of(plan, 1), lowered)
