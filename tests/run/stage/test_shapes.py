"""Mini-batches of different lengths train like the unpartitioned model. Ranks with different lengths are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import run_ranks, values
from run_shapes import LENGTHS, batch, build, disagree, disagree_on_values, refused, resume, train, train_unpartitioned

from graphpipe.errors import InvalidInput


def assert_alike(ranks: list[list[dict[str, Any]]], expected_steps: list[dict[str, Any]], *, rel: float = 1e-5) -> None:
    for step, expected in enumerate(expected_steps):
        seen: set[str] = set()
        for rank in ranks:
            assert rank[step]["loss"] == pytest.approx(expected["loss"], rel=rel)
            for name, each in rank[step]["gradients"].items():
                torch.testing.assert_close(
                    each, expected["gradients"][name], rtol=rel, atol=rel / 10,
                    msg=lambda message, at=f"step {step}, {name}": f"{at}: {message}",
                )  # fmt: skip
            seen |= rank[step]["gradients"].keys()
        assert seen == expected["gradients"].keys()


@pytest.mark.parametrize(("cut", "ranks"), [("two", 2), pytest.param("four", 4, marks=pytest.mark.slow)])
def test_gpt_trains_on_changing_lengths(cut: str, ranks: int, tmp_path: Path) -> None:
    expected = train_unpartitioned(cut)
    kinds = ["allreduce"] if cut == "two" else ["allreduce", "ddp", "fsdp2", "allreduce, zero"]
    together = values(run_ranks(train, ranks, tmp_path, cut, kinds, {}, seconds=200))
    for kind in kinds:
        assert_alike([rank[kind] for rank in together], expected)


def test_glue_that_depends_on_the_length_is_built_for_every_length(tmp_path: Path) -> None:
    expected = train_unpartitioned("masked")
    for kind, found in train("masked", ["allreduce"], {}).items():
        assert len(found) > len(LENGTHS), kind
        assert_alike([found], expected)
    together = values(run_ranks(train, 4, tmp_path, "masked", ["ddp"], {}, seconds=200))
    for kind in together[0]:
        assert_alike([rank[kind] for rank in together], expected)


@pytest.mark.slow
def test_lengths_may_change_under_autocast() -> None:
    expected = [each["loss"] for each in train_unpartitioned("two")]
    found = [each["loss"] for each in train("two", ["allreduce"], {"precision": "bf16"})["allreduce"]]
    assert found == pytest.approx(expected, rel=2e-2)
    assert found != pytest.approx(expected, rel=1e-6)


def test_a_repeated_length_is_not_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, _ = build("two")
    pipeline.step(*batch(LENGTHS[1], 0))
    monkeypatch.setattr("graphpipe.run.step.programs_by_shape.split_for_shapes", None)
    pipeline.step(*batch(LENGTHS[0], 1))
    pipeline.step(*batch(LENGTHS[1], 2))
    with pytest.raises(TypeError):
        pipeline.step(*batch(20, 3))


def test_a_checkpoint_does_not_depend_on_the_length(tmp_path: Path) -> None:
    unbroken, resumed = resume("two", str(tmp_path))
    assert unbroken == resumed


def test_ranks_with_different_lengths_stop_before_any_message(tmp_path: Path) -> None:
    for ranks, cut in [(2, "two"), (4, "four")]:
        outcomes = run_ranks(disagree, ranks, tmp_path / cut, cut, 24, 12)
        message = [re.sub(r" \(values so far \w{8}\)", "", each) for each in values(outcomes)]
        given = "rank {} was given 12 samples of tokens int64[{}]"
        assert message[1].startswith(f"InvalidInput: mini-batch: {given.format(0, 16)}; {given.format(1, 24)}")
        assert message[0].startswith(f"InvalidInput: mini-batch: {given.format(1, 24)}; {given.format(0, 16)}")
        # Rank 3 of four has no messages with rank 1, so it may only see that rank 2 has stopped.
        assert all(each.startswith(("InvalidInput: mini-batch: rank 1", "PeerLost: rank 2")) for each in message[2:])
        assert max(outcome.seconds for outcome in outcomes) < 15


def test_a_mini_batch_that_one_rank_cannot_use_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    message = values(run_ranks(disagree, 2, tmp_path, "two", 16, 13))
    assert message[1].startswith("InvalidInput: step: the mini-batch has 13 samples, the plan is for 12")
    assert "rank 1 cannot use its mini-batch (the mini-batch has 13 samples" in message[0]


def test_a_length_that_changes_the_models_graph_is_refused() -> None:
    message = refused("masked", "allreduce", 32)
    assert message.startswith("InvalidInput: inputs: with samples of tokens[32] the model computes something else")
    assert "Pad the samples" in message
    pipeline, _ = build("masked")
    with pytest.raises(InvalidInput):
        pipeline.step(*batch(32, 0))
    pipeline.step(*batch(LENGTHS[0], 0))


def test_fsdp_refuses_new_lengths_if_glue_reads_sharded_parameters(tmp_path: Path) -> None:
    message = values(run_ranks(refused, 4, tmp_path, "masked", "fsdp2", 24))
    assert any("Pad the samples, or choose engine='allreduce' or 'ddp'" in each for each in message)
    assert all(each.startswith(("InvalidInput: ", "PeerLost: ")) for each in message)


def test_ranks_with_different_values_stop_in_the_first_step(tmp_path: Path) -> None:
    errors = values(run_ranks(disagree_on_values, 2, tmp_path))
    for rank, text in enumerate(errors):
        given = [f"rank {other} was given 12 samples ({{}}) of tokens int64[16]" for other in (1 - rank, rank)]
        first, second = re.findall(r"\((values so far \w{8}, initial weights \w{8})\)", text)
        assert first[:22] != second[:22]
        assert first[22:] == second[22:]
        assert text.startswith(f"InvalidInput: mini-batch: {given[0].format(first)}; {given[1].format(second)}. Give")
        assert "drawn only from the epoch and the seed" in text
