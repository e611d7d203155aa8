"""Ranks find out that they were given other data or weights. Each of these trained something else in silence."""

from pathlib import Path

import pytest
import torch
from run_disagreements import (
    STEPS,
    make_checkpoint,
    message_after_resume,
    message_of_positions,
    message_of_replicas,
    message_of_weights,
    steps_until_noticed,
)
from run_ranks import run_ranks, values
from torch import nn

from graphpipe.run.stage.mini_batch import MiniBatch, SeenValues
from graphpipe.run.weight_digest import differing, digest_of, summary_of

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("how", "replicas"), [("shifted", False), ("one sample", True)])
def test_data_that_differ_later_are_noticed(how: str, replicas: bool, tmp_path: Path) -> None:
    noticed = values(run_ranks(steps_until_noticed, 2, tmp_path, how, replicas))
    assert all(5 <= step <= 5 + 4 for step in noticed), noticed  # two of eight samples are compared in each step
    assert max(noticed) < STEPS


def test_other_places_in_the_data_are_named(tmp_path: Path) -> None:
    for rank, message in enumerate(values(run_ranks(message_of_positions, 2, tmp_path))):
        assert message.startswith("InvalidInput: mini-batch: ")
        assert f"rank {1 - rank} was given 8 samples (epoch {1 - rank}, mini-batch 4, values so far" in message


def test_other_initial_weights_are_found_in_the_first_step(tmp_path: Path) -> None:
    for message in values(run_ranks(message_of_weights, 2, tmp_path)):
        assert "initial weights" in message
        assert "Give every rank the same" in message


def test_after_a_resume_all_values_are_compared_and_weights_are_not(tmp_path: Path) -> None:
    values(run_ranks(make_checkpoint, 2, tmp_path / "first", str(tmp_path / "checkpoints")))
    for message in values(run_ranks(message_after_resume, 2, tmp_path / "second", str(tmp_path / "checkpoints"))):
        assert "values so far" in message
        assert "initial weights" not in message


def test_replicas_with_other_weights_are_found_at_a_checkpoint(tmp_path: Path) -> None:
    for message in values(run_ranks(message_of_replicas, 2, tmp_path, str(tmp_path / "checkpoints"))):
        assert "ranks 0 and 1 have replicas with different weights: '0.weight' differs" in message


def mini_batch(step: int, changed: int | None = None) -> MiniBatch:
    inputs = torch.arange(32.0).view(8, 4) + step
    if changed is not None:
        inputs[changed] += 1
    return MiniBatch(
        inputs={"x": inputs},
        targets=torch.zeros(8),
        size=8,
        micro_batches=(2,),
        key=(0, step),
        training=True,
        specs={},
        check_finite=True,
    )


def test_every_sample_is_seen_within_half_a_mini_batch_of_steps() -> None:
    for changed in range(8):
        one, other = SeenValues(), SeenValues()
        for step in range(1 + 4):
            one.add(mini_batch(step))
            other.add(mini_batch(step, changed if step else None))
        assert one.digits != other.digits
    first, second = SeenValues(), SeenValues()
    first.add(mini_batch(0))
    second.add(mini_batch(0, 5))
    assert first.digits != second.digits  # all samples of the first mini-batch


def test_digests_of_weights_see_exchanged_elements_and_summaries_see_more_than_rounding() -> None:
    layer, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.load_state_dict(layer.state_dict())
    assert digest_of(layer) == digest_of(other)
    with torch.no_grad():
        other.weight[0, 0], other.weight[0, 1] = layer.weight[0, 1].clone(), layer.weight[0, 0].clone()
    assert digest_of(layer) != digest_of(other)
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        other.weight.mul_(1 + 1e-6)
    own = summary_of(dict(layer.named_parameters()))
    assert differing(own, summary_of(dict(other.named_parameters()))) == ""
    with torch.no_grad():
        other.bias[2] += 0.01
    assert differing(own, summary_of(dict(other.named_parameters()))) == "bias"


def test_a_digest_is_summed_in_parts_that_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch made 8-byte integers of a whole weight first: 512 MiB for one of 256 MiB."""
    layer = nn.Linear(35, 21)
    whole = digest_of(layer)
    monkeypatch.setattr("graphpipe.run.weight_digest._CHUNK", 14)
    assert digest_of(layer) == whole
    with torch.no_grad():
        layer.weight[3, 4] += 1
    assert digest_of(layer) != whole
