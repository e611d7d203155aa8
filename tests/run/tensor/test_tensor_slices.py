"""What each of the ranks that share a replica has, counts and runs; by hand on small plans."""

from dataclasses import replace

import pytest
from run_tensor_parallel import Cut, plan_of

from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.tensor.share_stages import check_tensor
from graphpipe.run.tensor.tensor_slices import counted, divided_parameters, is_divided, piece_of
from graphpipe.run.worker.played_alone import played_alone
from graphpipe.schedule import Compute, Receive, Send
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule

REPLICAS: Cut = [(["embedding", "layers.0*"], [0, 1, 2, 3], 2, 2), (["layers.1*", "head*"], [4, 5], 2, 2)]
TIED_UNEQUAL: Cut = [(["embedding", "attention"], [0, 1], 2, 2), (["feed_forward", "last*", "head*"], [2], 1, 2)]


def test_ranks_of_a_replica_and_those_with_the_same_part() -> None:
    placement = RankPlacement.of(plan_of("gpt", REPLICAS), 6)
    assert [placement.team(0, replica) for replica in range(2)] == [(0, 1), (2, 3)]
    assert [placement.ranks(0, position) for position in range(2)] == [(0, 2), (1, 3)]
    assert [(slot.replica, slot.position) for rank in range(4) for slot in placement.slots(rank)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_a_single_rank_plays_the_first_device_of_each_replica() -> None:
    plan = plan_of("gpt", REPLICAS)
    assert [slot.device for slot in RankPlacement.of(plan, 1).slots(0)] == [0, 2, 4]
    order = lower(plan, build_schedule(plan)).order
    played = [*played_alone(order, plan)]
    assert {device for device, _ in played} == {0, 2, 4}
    counts = [sum(isinstance(action, kind) for _, action in played) for kind in (Compute, Send, Receive)]
    whole = replace(plan, stages=tuple(replace(it, devices=it.peers[0], tensor=1) for it in plan.stages))
    plain = lower(whole, build_schedule(whole)).order
    assert counts == [sum(isinstance(action, kind) for _, action in plain) for kind in (Compute, Send, Receive)]


def test_the_first_rank_counts_what_all_have_whole() -> None:
    plan = plan_of("gpt", REPLICAS)
    part, whole = "layers.0.feed_forward.widen.weight[0:8]", "layers.0.feed_forward.norm.weight"
    assert is_divided(plan, 0, part)
    assert [counted(plan, 0, position, name) for position in (0, 1) for name in (part, whole)] == [
        True,
        True,
        True,
        False,
    ]


def test_a_parameter_is_divided_if_all_stages_that_share_it_divide_it_alike() -> None:
    plan = plan_of("grouped", TIED_UNEQUAL)
    assert "embedding.weight" not in divided_parameters(plan, 0)
    assert "attention.q_proj.weight" in divided_parameters(plan, 0)


@pytest.mark.parametrize(
    ("own", "other", "length"),
    [((8, 12), (12, 16), 16), ((0, 4), (4, 8), 16), ((0, 2), (2, 5), 5)],
    ids=["second part", "first part", "odd vocabulary"],
)
def test_the_slice_of_another_rank(own: tuple[int, int], other: tuple[int, int], length: int) -> None:
    for given, wanted, position in ((own, other, 0), (other, own, 1)):
        piece = ParameterSlice(parameter="w", dimension=0, start=given[0], stop=given[1])
        found = piece_of(piece, length, 2, position, 1 - position)
        assert (found.start, found.stop) == wanted


@pytest.mark.parametrize(
    ("changes", "engine", "said"),
    [
        ({"state": "all"}, "allreduce", "replicas shard weights and gradients"),
        ({}, "ddp", "engine 'ddp' sums gradients"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, str], engine: str, said: str) -> None:
    plan = plan_of("gpt", REPLICAS)
    stages = tuple(replace(stage, **changes) for stage in plan.stages)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=said):
        check_tensor(replace(plan, stages=stages), engine)


def test_several_processes_are_needed_for_each_part() -> None:
    with pytest.raises(InvalidInput, match="the plan uses 6 devices, the world has 2 ranks"):
        RankPlacement.of(plan_of("gpt", REPLICAS), 2)
