"""Options that cannot work are refused when they are made, before any rank waits for another."""

from dataclasses import FrozenInstanceError
from math import inf, nan
from typing import Any

import pytest

import graphpipe as gp
from graphpipe.run.step.pipeline_options import PipelineOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "allreduc"}, "unknown engine 'allreduc'"),
        ({"engine": "fsdp2", "shard_optimizer": True}, "shards the optimizer's state itself"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"clip_norm": 0.0}, "clip_norm: is 0.0, must be positive"),
        ({"clip_norm": nan}, "clip_norm: is nan, must be positive"),
        ({"seed": 2**63}, "seed: is 9223372036854775808, must fit in 64 bits"),
        ({"timeout_seconds": 0.0}, "timeout_seconds: is 0.0, must be positive and finite"),
        ({"timeout_seconds": inf}, "timeout_seconds: is inf, must be positive and finite"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gp.InvalidInput, match=message):
        PipelineOptions(**options)


def test_options_are_keyword_only_and_frozen() -> None:
    with pytest.raises(TypeError):
        PipelineOptions(None)  # pyright: ignore[reportCallIssue]
    with pytest.raises(FrozenInstanceError):
        PipelineOptions().seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_options_are_a_public_name() -> None:
    assert gp.PipelineOptions is PipelineOptions
