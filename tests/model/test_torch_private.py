"""What is used of torch beyond its promises still behaves as it is used."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from graphpipe.model.capture.module_graph.module_graph import fake_twin
from graphpipe.model.torch_private import (
    OpaqueCall,
    asks_for_values,
    end_to_end,
    expect_gradients,
    fake_mode,
    flatten,
    is_mutable,
    is_random,
    is_view,
    leaf,
    make_plain,
    norms,
    profiling,
    recording,
    running_node,
    same_but_no_leaf,
    same_memory,
    unflatten,
)

aten = torch.ops.aten


def test_operators_tell_what_they_do() -> None:
    assert is_mutable(aten.relu_.default)
    assert not is_mutable(aten.relu.default)
    assert is_view(aten.view.default)
    assert not is_view(aten.add_.Tensor)
    assert not is_view(aten.mm.default)
    assert is_random(aten.rand.default)
    assert is_random(aten.dropout.default) or is_random(aten.native_dropout.default)
    assert not is_random(aten.add.Tensor)


def test_what_asks_for_values_is_told_apart() -> None:
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        bool(torch.ones(2).sum() > 0)
    assert asks_for_values(caught.value)
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        torch.ones(2).numpy()
    assert asks_for_values(caught.value)
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not asks_for_values(caught.value)


def test_trees() -> None:
    tree = {"a": (1, [2, None]), "b": 3}
    leaves, spec = flatten(tree)
    assert unflatten(leaves, spec) == tree
    assert [leaf(tree, position) for position in range(len(leaves))] == leaves


def test_memory_is_shared_by_views_alone() -> None:
    tensor = torch.zeros(4)
    assert same_memory(tensor, tensor[1:])
    assert not same_memory(tensor, tensor.clone())


def test_a_plain_attribute_is_in_no_state() -> None:
    module = nn.Module()
    module.register_buffer("value", torch.ones(2))
    make_plain(module, "value")
    assert not module.state_dict()
    assert torch.equal(module.value, torch.ones(2))


class Writes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y[:, 0].add_(1)
        return x + y


def test_a_recorded_call_is_one_operator_that_names_what_it_wrote() -> None:
    mode = fake_mode()
    root = fake_twin(nn.Sequential(nn.Linear(3, 3)), mode)
    root.add_module("writes", Writes())
    with mode:
        x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    with recording(root, ["writes"]) as calls:
        assert root.get_submodule("writes")(x, y=y).shape == (2, 3)
    (call,) = calls
    assert isinstance(call, OpaqueCall)
    assert (call.path, call.tensor_slots, call.mutated) == ("writes", [0, 1], [1])
    assert "_call_impl" not in vars(root.get_submodule("writes"))


def test_the_running_operation_is_the_one_whose_saved_tensors_are_read() -> None:
    readers: list[object] = []
    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: readers.append(running_node()) or tensor):
        y = x.exp()
        z = y.sin()
    z.sum().backward()
    assert readers == [z.grad_fn, y.grad_fn]
    assert running_node() is None


def test_what_is_the_same_but_no_leaf_may_be_written_into_and_its_gradient_is_the_leafs() -> None:
    leaf = torch.tensor([-1.0, 2.0], requires_grad=True)
    same = same_but_no_leaf(leaf)
    assert not same.is_leaf
    assert same_memory(same, leaf)
    (3.0 * same.relu_()).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0, 3.0]
    assert leaf.tolist() == [0.0, 2.0]
    with pytest.raises(RuntimeError, match="view of a leaf"):  # why it is no view
        leaf.view_as(leaf).relu_()


def test_the_profiler_is_seen_while_it_records() -> None:
    assert not profiling()
    with profile(activities=[ProfilerActivity.CPU]):
        assert profiling()
    assert not profiling()


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """Return a process group of this process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_ddp_reduces_the_backward_it_was_told_of_though_its_forward_never_ran(alone: dist.ProcessGroup) -> None:
    inner = nn.Linear(2, 1)
    ddp = DistributedDataParallel(inner, process_group=alone, find_unused_parameters=True)
    reduced: list[Tensor] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        reduced.append(bucket.buffer().clone())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(2 * bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    x = torch.ones(3, 2)
    inner(x).sum().backward()
    assert not reduced
    loss = inner(x).sum()
    expect_gradients(ddp, [loss])
    loss.backward()
    assert len(reduced) == 1
    assert torch.equal(inner.weight.grad, torch.full((1, 2), 12.0))


def test_norms_and_one_vector_of_many_tensors_of_any_dtypes() -> None:
    tensors = [torch.tensor([[3.0, 4.0]]), torch.tensor(2.0, dtype=torch.float64), torch.tensor([1.0]).bfloat16()]
    assert [norm.item() for norm in norms(tensors)] == [5.0, 2.0, 1.0]
    assert end_to_end(tensors).tolist() == [3.0, 4.0, 2.0, 1.0]
    strided = torch.arange(6.0).reshape(2, 3).T
    assert end_to_end([strided, torch.tensor([7.0])]).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 7.0]
