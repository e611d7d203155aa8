"""Private torch API still behaves as graphpipe uses it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.launcher.api import LaunchConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from graphpipe.model.torch_private import (
    CONVERSION,
    DispatchMode,
    FunctionContext,
    answering,
    as_tensors,
    call_directly,
    compiled_form,
    current_backward_node,
    end_transforms,
    fake_mode,
    flat_vector,
    flatten,
    gradient_hooks,
    guessed,
    intercepted,
    is_data_dependent,
    is_mutable,
    is_random,
    is_view,
    know_number,
    known_number,
    leaf,
    memory_key,
    non_leaf_alias,
    norms,
    own_buffers,
    own_hooks,
    prepare_ddp_backward,
    profiling,
    scripted_values,
    shut_down_within,
    transform_depth,
    unflatten,
    unregister_buffer,
    unsaved_buffers,
    with_child,
    without_data,
    without_write,
    written_arguments,
)

aten = torch.ops.aten


def test_properties_of_operators() -> None:
    assert is_mutable(aten.relu_.default)
    assert not is_mutable(aten.relu.default)
    assert is_view(aten.view.default)
    assert not is_view(aten.add_.Tensor)
    assert not is_view(aten.mm.default)
    assert is_random(aten.rand.default)
    assert is_random(aten.dropout.default) or is_random(aten.native_dropout.default)
    assert not is_random(aten.add.Tensor)
    assert without_write(aten.add_.Tensor) is aten.add.Tensor
    assert without_write(aten.add.Tensor) is None


def test_sizes_that_depend_on_values_are_guessed() -> None:
    # JetMoE and X-MOD could not be captured: a layer gives each expert or language its own words.
    with fake_mode():
        chosen = torch.ones(5).nonzero()
    assert guessed(chosen.numel() * 4, 3) == 3 * 4
    assert guessed(7, 3) == 7


def test_errors_that_depend_on_data_are_recognised() -> None:
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        bool(torch.ones(2).sum() > 0)
    assert is_data_dependent(caught.value)
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        torch.ones(2).numpy()
    assert is_data_dependent(caught.value)
    with fake_mode(), pytest.raises(RuntimeError) as caught:
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    assert not is_data_dependent(caught.value)


def test_questions_about_rows_are_answered_and_their_number_stays_unknown() -> None:
    with fake_mode():
        rows = torch.ones(5).nonzero()
        for answer in (True, False):
            with answering(lambda answer=answer: answer):
                assert bool(rows.numel() == 0) is answer
                assert bool(rows.shape[0]) is answer
                assert len(rows) == answer
                assert len(torch.ones(5)) == 5
                with pytest.raises(RuntimeError, match="data-dependent"):
                    int(rows.shape[0])
        with pytest.raises(RuntimeError, match="data-dependent"):
            bool(rows.numel() == 0)
        with pytest.raises(RuntimeError, match="data-dependent"):
            len(rows)


def test_unflatten_inverts_flatten() -> None:
    tree = {"a": (1, [2, None]), "b": 3}
    leaves, spec = flatten(tree)
    assert unflatten(leaves, spec) == tree
    assert [leaf(tree, position) for position in range(len(leaves))] == leaves


def test_views_share_memory_and_copies_do_not() -> None:
    tensor = torch.zeros(4)
    assert memory_key(tensor) == memory_key(tensor[1:])
    copied = tensor.clone()  # a key is unique only while its tensor is alive
    assert memory_key(tensor) != memory_key(copied)


def test_an_unregistered_buffer_is_an_attribute_that_is_not_in_the_state() -> None:
    module = nn.Module()
    module.register_buffer("value", torch.ones(2))
    unregister_buffer(module, "value")
    assert not module.state_dict()
    assert isinstance(module.value, Tensor)
    assert torch.equal(module.value, torch.ones(2))


def test_the_buffers_of_a_module_can_be_put_back() -> None:
    module = nn.BatchNorm1d(2, track_running_stats=False)
    assert own_buffers(module) == {"running_mean": None, "running_var": None, "num_batches_tracked": None}
    module.running_mean = torch.ones(2)
    own_buffers(module)["running_mean"] = None
    assert module.running_mean is None


def test_buffers_that_are_in_no_checkpoint() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("stride", torch.tensor(2), persistent=False)
    assert unsaved_buffers(module) == {"stride": torch.tensor(2)}


def test_a_fake_tensor_answers_with_the_number_that_it_knows() -> None:
    with fake_mode():
        fake = torch.empty((), dtype=torch.int64)
    assert known_number(fake) is known_number(torch.tensor(3)) is None
    know_number(fake, torch.tensor(3))
    assert known_number(fake) == int(fake) == 3


def test_a_module_with_another_child_leaves_the_first_unchanged() -> None:
    first = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    second = with_child(first, "0", nn.Identity())
    assert isinstance(first[0], nn.Linear)
    assert [*second.children()] == [second.get_submodule("0"), first[1]]
    assert torch.equal(second(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_the_arguments_that_an_operator_writes_into_are_found() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    assert written_arguments(aten.add_.Tensor, (x, y), {})[0] is x
    assert len(written_arguments(aten.add_.Tensor, (x, y), {})) == 1
    assert written_arguments(aten.add.Tensor, (x, y), {}) == []
    assert written_arguments(aten.add.out, (x, y), {"out": y})[0] is y
    assert len(written_arguments(aten._foreach_mul_.Scalar, ([x, y], 2.0), {})) == 2


def test_an_intercepted_module_can_still_be_called_directly() -> None:
    module = nn.Linear(2, 3)
    with intercepted(module, lambda *args: "intercepted"):
        assert module(torch.zeros(1, 2)) == "intercepted"
        result = call_directly(module, input=torch.zeros(1, 2))
    assert isinstance(result, Tensor)
    assert "_call_impl" not in vars(module)


def test_the_current_backward_node_is_the_one_whose_saved_tensors_are_read() -> None:
    readers: list[object] = []
    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: readers.append(current_backward_node()) or tensor):
        y = x.exp()
        z = y.sin()
    z.sum().backward()
    assert readers == [z.grad_fn, y.grad_fn]
    assert current_backward_node() is None


def test_an_alias_of_a_leaf_may_be_written_into_and_passes_its_gradient_on() -> None:
    leaf = torch.tensor([-1.0, 2.0], requires_grad=True)
    alias = non_leaf_alias(leaf)
    assert not alias.is_leaf
    assert memory_key(alias) == memory_key(leaf)
    (3.0 * alias.relu_()).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0, 3.0]
    assert leaf.tolist() == [0.0, 2.0]
    with pytest.raises(RuntimeError, match="view of a leaf"):  # why it is not a view
        leaf.view_as(leaf).relu_()


def test_a_tensor_without_data_has_a_shape_and_calls_inside_a_block_do_not_reach_its_class() -> None:
    class Named(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "called"

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("there is no data")

    made = without_data(Named, [2, 3], dtype=torch.float16, device=torch.device("cpu"))
    assert made.size() == "called"
    with as_tensors():
        assert (made.size(), made.dtype, made.device.type) == ((2, 3), torch.float16, "cpu")


def test_profiling_is_true_while_the_profiler_records() -> None:
    assert not profiling()
    with profile(activities=[ProfilerActivity.CPU]):
        assert profiling()
    assert not profiling()


@pytest.fixture
def single_rank_group(tmp_path: Path) -> Any:
    """Return a process group with one rank, this process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_ddp_reduces_a_prepared_backward_although_its_forward_did_not_run(
    single_rank_group: dist.ProcessGroup,
) -> None:
    inner = nn.Linear(2, 1)
    ddp = DistributedDataParallel(inner, process_group=single_rank_group, find_unused_parameters=True)
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
    prepare_ddp_backward(ddp, [loss])
    loss.backward()
    assert len(reduced) == 1
    assert inner.weight.grad is not None
    assert torch.equal(inner.weight.grad, torch.full((1, 2), 12.0))


def test_norms_and_the_flat_vector_of_tensors_of_several_dtypes() -> None:
    tensors = [torch.tensor([[3.0, 4.0]]), torch.tensor(2.0, dtype=torch.float64), torch.tensor([1.0]).bfloat16()]
    assert [norm.item() for norm in norms(tensors)] == [5.0, 2.0, 1.0]
    assert flat_vector(tensors).tolist() == [3.0, 4.0, 2.0, 1.0]
    strided = torch.arange(6.0).reshape(2, 3).T
    assert flat_vector([strided, torch.tensor([7.0])]).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 7.0]


def test_autocast_converts_weights_by_one_operation() -> None:
    class Seen(DispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            converted.extend([memory_key(args[0])] if func is CONVERSION else [])
            return func(*args, **(kwargs or {}))

    converted: list[int] = []
    layer = nn.Linear(2, 3)
    with Seen(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(layer(torch.ones(1, 2)).sum(1, keepdim=True).expand(1, 2))
    weights = [memory_key(each) for each in layer.parameters()]
    assert sorted(each for each in converted if each in weights) == sorted(weights)  # once per forward


OPTIMIZERS = """
import sys

import torch

from graphpipe.run.device.without_compiler import without_compiler

linear = torch.nn.Linear(2, 2)
for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RAdam, torch.optim.Adagrad):
    with without_compiler():
        optimizer = kind(linear.parameters(), lr=0.1)
        linear(torch.ones(1, 2)).sum().backward()
        before = linear.weight.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    assert not torch.equal(linear.weight, before)
    assert not [name for name in sys.modules if name.startswith("torch._dynamo")]

with without_compiler():
    import torch._dynamo.utils
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    assert compiled(torch.ones(1)).item() == 2
assert "torch._dynamo.config" in sys.modules
assert torch._dynamo.graph_break.__module__.startswith("torch._dynamo")
optimizer.zero_grad()
assert "__dynamo_disable" in vars(torch.optim.Optimizer.zero_grad.__wrapped__)  # the compiler's own answer by now
"""


def test_optimizers_run_without_the_compiler_and_code_that_uses_it_gets_it() -> None:
    # Each rank spent two seconds of processor time on this import before its first step.
    subprocess.run([sys.executable, "-c", OPTIMIZERS], check=True, timeout=120)


SHARDED = """
from graphpipe.run.device.without_compiler import without_compiler

with without_compiler():
    from torch.distributed.optim import ZeroRedundancyOptimizer
"""


@pytest.mark.slow
def test_sharded_optimizers_are_imported_beside_the_placeholder_of_the_compiler() -> None:
    # `inspect` asked the placeholder for its `__file__`, which imported the compiler in the middle of the import of
    # torch.distributed.tensor: a training with `train.shard_optimizer=true` failed in every rank that began.
    subprocess.run([sys.executable, "-c", SHARDED], check=True, timeout=120)


def test_the_agent_is_told_when_to_kill_if_it_can_be_told() -> None:
    # With torch 2.11 no rank could be started: its LaunchConfig has no `shutdown_timeout`.
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    shut_down_within(config, 3)
    assert getattr(config, "shutdown_timeout", 3) == 3
    older: Any = SimpleNamespace()
    shut_down_within(older, 3)
    assert not vars(older)


def test_hooks_and_functions_are_found() -> None:
    layer, weight = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def found() -> list[Sequence[object]]:
        return [own_hooks(layer, backward=True), own_hooks(layer, backward=False), gradient_hooks(weight)]

    assert found() == [[], [], []]
    layer.register_full_backward_hook(lambda *_: None)
    layer.register_full_backward_pre_hook(lambda *_: None)
    layer.register_forward_hook(lambda *_: None)
    layer.register_forward_pre_hook(lambda *_: None)
    weight.register_hook(lambda gradient: gradient)
    weight.register_post_accumulate_grad_hook(lambda _: None)
    assert [len(hooks) for hooks in found()] == [2] * 3
    assert compiled_form(layer) == ""


def test_a_context_is_made_at_each_call_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.14 calls functions in C: replacing `apply` of their base no longer saw them."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    early, called = Twice.apply, list[str]()
    monkeypatch.setattr(
        FunctionContext, "__init__", lambda context: called.append(context._forward_cls.__name__), raising=False
    )
    early(torch.ones(1, requires_grad=True))
    Twice.apply(torch.ones(1, requires_grad=True))
    assert called == ["Twice", "Twice"]


def test_a_scripted_module_tells_its_buffers_and_attributes() -> None:
    found = scripted_values(torch.jit.script(nn.BatchNorm1d(2)))
    assert sorted(found) == ["num_batches_tracked", "running_mean", "running_var"]


def test_maps_that_a_failing_graph_left_open_are_ended() -> None:
    """In an open map `torch.rand` fails, for the rest of the process."""
    depth = transform_depth()
    _functorch._vmap_increment_nesting(3, "error")
    with pytest.raises(RuntimeError, match="random operation"):
        torch.rand(1)
    end_transforms(depth)
    assert transform_depth() == depth
    assert torch.rand(1).shape == (1,)
