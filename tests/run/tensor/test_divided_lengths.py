"""Stages whose ranks divide the sequence, for inputs of other lengths than those of the plan."""

from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest
import torch
from models_to_share import MODELS
from run_tensor_parallel import captured_of, plan_of

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.model.split.split import build_stages, submodules_for
from graphpipe.model.split.split_for_shapes import operator_nodes, split_for_shapes
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.tensor.share_stages import check_tensor, share_stages


@cache
def plan() -> gp.Plan:
    """Return a plan of one stage on two ranks. Each worker imports this file, and would make it for nothing."""
    return plan_of("grouped", [(["*"], [0, 1], 2, 2)], sequence_parallel=True)


def inputs_of(length: int) -> tuple[Input, ...]:
    """Return inputs of so many tokens."""
    return tuple(replace(each, sample_shape=(length,)) for each in plan().graph.inputs)


def test_an_even_length_is_divided_and_an_odd_one_refused() -> None:
    model, captured = MODELS["grouped"]().double(), captured_of("grouped")
    submodules = submodules_for(model, plan().graph)
    world = World(rank=0, size=2, device=torch.device("cpu"), timeout=timedelta(seconds=1))
    share_stages(submodules, RankPlacement.of(plan(), 2), world)
    (planned,) = build_stages(model, plan(), captured, submodules)
    groups = operator_nodes(captured)
    (longer,) = split_for_shapes(model, plan(), groups, inputs_of(8), submodules)
    assert planned.summed == longer.summed != frozenset()
    assert [*dict(planned.module.named_modules())] == [*dict(longer.module.named_modules())]
    with pytest.raises(InvalidInput, match=r"2 devices divide sequences, and '.*' has 7 positions.*Pad the samples"):
        split_for_shapes(model, plan(), groups, inputs_of(7), submodules)


def test_other_weight_policies_are_refused() -> None:
    with pytest.raises(InvalidInput, match="they divide the sequence, and the weight policy is 'stash'"):
        check_tensor(replace(plan(), weights="stash"), "allreduce")
