"""Everything taken from torch that torch does not promise to keep, in one place; each piece has a test."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch._utils import _flatten_dense_tensors
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# pyright: reportPrivateUsage=false

TreeSpec = pytree.TreeSpec
DispatchMode = TorchDispatchMode


def fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have shapes and no data; real tensors that meet fake ones turn fake."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # 0.6 s, which ranks of declared models do not need

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def asks_for_values(error: BaseException) -> bool:
    """True for an error of a forward that wants to know what is in a tensor of `fake_mode`."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException) or ".numpy()" in str(error)


def flatten(tree: object) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of nested containers, and their arrangement."""
    return pytree.tree_flatten(tree)


def flatten_unless(tree: object, stops: Callable[[object], bool]) -> tuple[list[Any], TreeSpec]:
    """Return the same, with everything for which `stops` is true as a leaf."""
    return pytree.tree_flatten(tree, is_leaf=stops)


def unflatten(leaves: Sequence[object], spec: TreeSpec) -> Any:
    """Arrange leaves as `flatten` found them."""
    if spec.type is None:  # a leaf, as most models return
        (leaf,) = leaves
        return leaf
    return pytree.tree_unflatten(leaves, spec)


def is_lazy(tensor: Tensor) -> bool:
    """True for a parameter or buffer of a lazy module that has no shape yet."""
    return isinstance(tensor, UninitializedTensorMixin)


def make_plain(holder: nn.Module, name: str) -> None:
    """Turn a buffer of `holder` into a plain attribute, which is in no state."""
    tensor = holder._buffers.pop(name, None)
    if tensor is not None:
        holder.__dict__[name] = tensor


def leaf(tree: object, position: int) -> Any:
    """Return one leaf of nested containers."""
    return pytree.tree_leaves(tree)[position]


def is_mutable(target: object) -> bool:
    """True for an operator that writes into one of its arguments."""
    return isinstance(target, OpOverload) and target._schema.is_mutable


def is_higher_order(target: object) -> bool:
    """True for an operator that runs a graph of its own (a branch on values, a mode of torch)."""
    return isinstance(target, HigherOrderOperator)


def is_random(target: object) -> bool:
    """True for an operator that draws random numbers."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_view(target: OpOverload) -> bool:
    """True for an operator whose result shares memory with an argument that it only reads."""
    infos = [result.alias_info for result in target._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


@dataclass(slots=True, kw_only=True)
class OpaqueCall:
    """One call of a submodule that capture does not look into."""

    path: str
    module: nn.Module
    inputs: TreeSpec
    """Arrangement of the arguments: (args, kwargs)."""
    constants: list[Any]
    """The arguments' leaves; None where a tensor or a size belongs."""
    tensor_slots: list[int]
    size_slots: list[int]
    outputs: list[Any] = field(default_factory=list)
    """Leaves of what it returned (fake tensors and constants)."""
    output_spec: TreeSpec | None = None
    mutated: list[int] = field(default_factory=list)
    """Tensor arguments it wrote into, as positions in `tensor_slots`; their new values follow the outputs."""

    def run(self, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Run the module on fake tensors; return its output tensors, then the arguments it wrote into."""
        leaves, copies = list(self.constants), [tensor.clone() for tensor in tensors]
        for slot, value in [*zip(self.tensor_slots, copies, strict=True), *zip(self.size_slots, sizes, strict=True)]:
            leaves[slot] = value
        args, kwargs = unflatten(leaves, self.inputs)
        with _Writes() as writes:
            result = type(self.module)._call_impl(self.module, *args, **kwargs)
        self.outputs, self.output_spec = flatten(result)
        self.mutated = [position for position, copy in enumerate(copies) if writes.into(copy)]
        tensors_out = [output for output in self.outputs if isinstance(output, Tensor)]
        return [tensor.clone() for tensor in [*tensors_out, *(copies[position] for position in self.mutated)]]


class _Writes(TorchDispatchMode):
    # Which tensors' memory operators write into.
    def __init__(self) -> None:
        super().__init__()
        self.written: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                self.written.append(value)
        return func(*args, **(kwargs or {}))

    def into(self, tensor: Tensor) -> bool:
        return any(same_memory(tensor, other) for other in self.written)


def memory_key(tensor: Tensor) -> int:
    """Return a number that is equal for tensors sharing memory, as long as one of them is alive."""
    return tensor.untyped_storage()._cdata


def same_but_no_leaf(tensor: Tensor) -> Tensor:
    """Return a tensor in the same memory whose gradient is the given one's; unlike a view, it may be written into."""
    return torch.ops.aten._unsafe_view.default(tensor, tensor.shape)


def profiling() -> bool:
    """True while torch's profiler records this thread; naming a range to it costs some microseconds even if not."""
    return torch.autograd._profiler_enabled()


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the 2-norm of every tensor (0-d each) in one call; there must be a tensor."""
    return list(torch._foreach_norm(tensors))


def end_to_end(tensors: list[Tensor]) -> Tensor:
    """Return a vector of all elements of some tensors in one call; there must be a tensor."""
    return _flatten_dense_tensors(tensors)


def running_node() -> Node | None:
    """Return the operation whose backward runs in this thread; None outside a backward."""
    return torch._C._current_autograd_node()


def expect_gradients(ddp: DistributedDataParallel, roots: Sequence[Tensor]) -> None:
    """Let DDP reduce gradients in the next backward, which begins at `roots`; its own forward need not have run."""
    ddp.reducer.prepare_for_backward(list(roots))


def same_memory(one: Tensor, other: Tensor) -> bool:
    """True when both tensors lie in the same memory."""
    return memory_key(one) == memory_key(other)


_CALLS: ContextVar[list[OpaqueCall]] = ContextVar("opaque calls of the capture under way")


@torch.library.custom_op("graphpipe::call", mutates_args=())
def _call(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    # Stands for an opaque call while torch.export traces; never runs on real tensors.
    raise AssertionError("an opaque call was traced, and then run as an operator")


@_call.register_fake
def _(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    return _CALLS.get()[index].run(tensors, sizes)


def is_opaque_call(target: object) -> bool:
    """True for the operator that stands for a call recorded by `recording`; its last argument is the position."""
    return target is torch.ops.graphpipe.call.default


@contextmanager
def recording(root: nn.Module, paths: Sequence[str]) -> Generator[list[OpaqueCall]]:
    """While inside, calls of these submodules are traced as one operator each and listed in order."""
    calls: list[OpaqueCall] = []
    token = _CALLS.set(calls)
    modules = {path: root.get_submodule(path) for path in paths}
    try:
        for path, module in modules.items():
            module.__dict__["_call_impl"] = _recorder(path, module, calls)
        yield calls
    finally:
        for module in modules.values():
            module.__dict__.pop("_call_impl", None)
        _CALLS.reset(token)


def _recorder(path: str, module: nn.Module, calls: list[OpaqueCall]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        leaves, spec = flatten((args, kwargs))
        tensors = [slot for slot, value in enumerate(leaves) if isinstance(value, Tensor)]
        sizes = [slot for slot, value in enumerate(leaves) if isinstance(value, torch.SymInt)]
        constants = [None if slot in (*tensors, *sizes) else value for slot, value in enumerate(leaves)]
        record = OpaqueCall(
            path=path, module=module, inputs=spec, constants=constants, tensor_slots=tensors, size_slots=sizes
        )
        calls.append(record)
        given = [leaves[slot] for slot in tensors]
        results = torch.ops.graphpipe.call(given, [leaves[slot] for slot in sizes], len(calls) - 1)
        assert record.output_spec is not None
        rest = iter(results)
        outputs = [next(rest) if isinstance(output, Tensor) else output for output in record.outputs]
        for position, value in zip(record.mutated, rest, strict=True):
            given[position].copy_(value)
        return unflatten(outputs, record.output_spec)

    return call
