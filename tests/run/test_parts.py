"""The small parts, each on its own."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of
from run_scenarios import build
from torch import Tensor

from graphpipe.errors import InvalidInput, PeerLost, PeerStalled
from graphpipe.plans.sharding import SampleRange
from graphpipe.run import RankLayout, SeatLayout
from graphpipe.run.comm.buckets import buckets, flatten, unflatten
from graphpipe.run.comm.rank_placement import Placement
from graphpipe.run.comm.world import translate_loss
from graphpipe.run.device.rng import apart, number_of, seed
from graphpipe.run.stage.tensor_tree import describe, leaves, map_tensors, rebuild
from graphpipe.run.step.gather_outputs import join

trees = st.recursive(
    st.sampled_from([torch.zeros(2, 3), torch.ones(1, dtype=torch.int64), None, 3, "word"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(trees)
def test_a_described_tree_is_rebuilt_with_the_same_arrangement(tree: Any) -> None:
    rebuilt = rebuild(describe(tree))
    assert describe(rebuilt) == describe(tree)
    assert [leaf.shape for leaf in leaves(rebuilt)] == [leaf.shape for leaf in leaves(tree)]


@given(trees)
def test_mapping_a_tree_keeps_its_arrangement(tree: Any) -> None:
    assert describe(map_tensors(tree, lambda tensor: tensor + 1)) == describe(tree)
    assert all(torch.equal(a, b + 1) for a, b in zip(leaves(map_tensors(tree, _plus_one)), leaves(tree), strict=True))


def _plus_one(tensor: Tensor) -> Tensor:
    return tensor + 1


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([torch.float32, torch.float64])), max_size=8))
def test_buckets_hold_every_tensor_once_and_one_dtype_each(sizes: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.full((size,), float(number), dtype=dtype) for number, (size, dtype) in enumerate(sizes)]
    wanted = [tensor.clone() for tensor in tensors]
    held = list(buckets(tensors, limit_bytes=16))
    assert sorted(id(tensor) for bucket in held for tensor in bucket) == sorted(map(id, tensors))
    for bucket in held:
        assert len({tensor.dtype for tensor in bucket}) == 1
        flat = flatten(bucket, torch.device("cpu")) + 1
        unflatten(flat, bucket)
    assert all(torch.equal(a, b + 1) for a, b in zip(tensors, wanted, strict=True))


def test_random_numbers_depend_on_the_key_alone_and_leave_the_generator_as_it_was() -> None:
    device = torch.device("cpu")
    torch.manual_seed(5)
    plain = torch.rand(3)
    torch.manual_seed(5)
    with apart(device):
        seed(device, number_of(0, 1, 2, 3))
        first = torch.rand(4)
    assert torch.equal(torch.rand(3), plain)
    with apart(device):
        seed(device, number_of(0, 1, 2, 3))
        assert torch.equal(torch.rand(4), first)
    with apart(device):
        seed(device, number_of(0, 1, 3, 2))
        assert not torch.equal(torch.rand(4), first)


def test_outputs_are_joined_in_sample_order() -> None:
    joined = join([(SampleRange(2, 3), {"a": torch.tensor([2])}), (SampleRange(0, 2), {"a": torch.tensor([0, 1])})])
    assert joined["a"].tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match=r"an output of shape \[\] for 1 samples"):
        join([(SampleRange(0, 1), torch.tensor(1.0)), (SampleRange(1, 2), torch.tensor(1.0))])


def test_every_device_has_a_rank() -> None:
    plan = plan_of(fan(), fan_batch()[0], STAGES["mixed"], BATCH)
    apart, together = Placement.of(plan, 6), Placement.of(plan, 1)
    assert [apart.devices(rank) for rank in range(6)] == [(device,) for device in range(6)]
    assert together.devices(0) == (0, 1, 2, 3, 4, 5)
    assert apart.ranks(1) == (2, 3, 4)
    assert [(seat.stage, seat.replica, seat.device) for seat in apart.seats(4)] == [(1, 2, 4)]
    with pytest.raises(InvalidInput, match="the plan uses 6 devices, the world has 4 ranks"):
        Placement.of(plan, 4)


def test_the_layout_names_what_a_rank_hosts() -> None:
    pipeline, _ = build("shared")
    seats = pipeline.layout()[0].seats
    assert isinstance(pipeline.layout()[0], RankLayout)
    assert [(seat.stage, seat.device) for seat in seats] == [
        ("stem", "cpu0"),
        ("left", "cpu1"),
        ("right", "cpu1"),
        ("head", "cpu0"),
    ]
    assert seats[3] == SeatLayout(stage="head", device="cpu0", replica=0, degree=1, micro_batch=4)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:1214", PeerLost),
        ("writev: Broken pipe", PeerLost),
        ("Timed out waiting 3000ms for recv operation to complete", PeerStalled),
        ("CUDA out of memory", RuntimeError),
    ],
)
def test_what_torch_says_of_a_lost_peer(text: str, kind: type[Exception]) -> None:
    with pytest.raises(RuntimeError) as caught, translate_loss("rank 3"):
        raise RuntimeError(text)
    assert type(caught.value) is kind
    if kind is not RuntimeError:
        assert str(caught.value).startswith("rank 3 d")
