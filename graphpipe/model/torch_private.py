"""Every use of private torch API, and every difference between its versions. Each function has a test."""

import copy
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partialmethod
from operator import attrgetter
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch._utils import _flatten_dense_tensors
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# pyright: reportPrivateUsage=false

TreeSpec = pytree.TreeSpec
DispatchMode = TorchDispatchMode
FunctionContext: Any = BackwardCFunction  # made at each call of an `autograd.Function` (`_forward_cls`)
without_data: Callable[..., Any] = Tensor._make_wrapper_subclass  # of a subclass: shape, dtype= and device= only
Operator = OpOverload
GROUPED_PRODUCT = torch.ops.aten._grouped_mm
COMPILED = attrgetter("_compiled_call_impl")  # of a module; None if `module.compile()` was not called
HOOKS_OF_TENSOR: Callable[[Tensor], tuple[Any, Any]] = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
OWN_TABLES: Callable[[nn.Module], Sequence[dict[str, Any]]] = attrgetter("_parameters", "_modules", "_buffers")
HOOK_TABLES: Callable[[nn.Module], Sequence[dict[int, Callable[..., Any]]]] = attrgetter(
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
)
own_buffers: Callable[[nn.Module], dict[str, Tensor | None]] = attrgetter("_buffers")  # those that are None, too
write_count: Callable[[Tensor], int] = attrgetter("_version")  # in place, on whatever device, since it was made
flat_vector: Callable[[list[Tensor]], Tensor] = _flatten_dense_tensors  # of all elements of at least one tensor
profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # asked before ranges, which cost microseconds
transform_depth: Callable[[], int] = _functorch.get_dynamic_layer_stack_depth  # `torch.vmap`s that are open
end_transforms: Callable[[int], object] = _functorch.pop_dynamic_layer_stack_and_undo_to_depth  # deeper ones
current_backward_node: Callable[[], Node | None] = torch._C._current_autograd_node  # of this thread; None outside
as_tensors: Any = torch._C.DisableTorchFunctionSubclass  # inside, functions take tensors of subclasses as any others
CONVERSION = torch.ops.aten._to_copy.default  # to another dtype, that autocast calls


def fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have shapes but no data; real tensors become fake when combined with fake ones."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # 0.6 s, which ranks of declared models do not need

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def unsaved_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the buffers of a module itself that are in no checkpoint."""
    return {name: module._buffers.get(name) for name in sorted(module._non_persistent_buffers_set)}


def know_number(fake: Tensor, value: Tensor) -> None:
    """Let a fake tensor of one element answer with a value when a forward asks for it."""
    assert isinstance(fake, FakeTensor)
    fake.constant = value.detach().cpu().clone()


def known_number(tensor: Tensor) -> int | None:
    """Return the number that a fake tensor answers with; None for other tensors."""
    constant = tensor.constant if isinstance(tensor, FakeTensor) else None
    with outside_tracing():
        return None if constant is None else int(constant)


@contextmanager
def numbers_kept(root: nn.Module) -> Generator[None]:
    """While inside, torch.export keeps the known numbers. It makes other fake tensors of buffers, not of attributes."""
    mode: Any = FakeTensorMode
    make = mode.from_tensor
    attributes = [
        (vars(part), name, value)
        for part in root.modules()
        for name, value in vars(part).items()
        if isinstance(value, FakeTensor) and value.constant is not None
    ]

    def keeping(self: FakeTensorMode, tensor: Tensor, **options: Any) -> FakeTensor:
        fake = make(self, tensor, **options)
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            fake.constant = tensor.constant
        return fake

    mode.from_tensor = keeping
    for held, name, value in attributes:
        held[name] = value.constant
    try:
        yield
    finally:
        mode.from_tensor = make
        for held, name, value in attributes:
            held[name] = value


def is_data_dependent(error: BaseException) -> bool:
    """True for the error of a forward that reads the values of a tensor of `fake_mode`."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    known = (GuardOnDataDependentSymNode, DataDependentOutputException)
    return isinstance(error, known) or any(each in str(error) for each in (".numpy()", "is not tracked with proxy for"))


@contextmanager
def outside_tracing() -> Generator[None]:
    """While inside, nothing that runs is traced, and no mode of tensors or functions acts."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def answering(answer: Callable[[], bool]) -> Generator[None]:
    """While inside, answer what forwards ask of sizes that depend on the values in a tensor, as `if rows.numel() == 0`.

    Torch's own questions keep their errors. `len(rows)` must be a plain number, so it is 1 or 0.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds: tuple[Any, ...] = (torch.SymBool, torch.SymFloat, Tensor)
    known, length = [kind.__bool__ for kind in kinds], Tensor.__len__

    def count(self: Tensor) -> int:
        try:
            return int(length(self))
        except GuardOnDataDependentSymNode:
            return int(answer())

    Tensor.__len__ = count
    for kind, own in zip(kinds, known, strict=True):
        kind.__bool__ = partialmethod(_asked, own, answer)
    try:
        yield
    finally:
        Tensor.__len__ = length
        for kind, own in zip(kinds, known, strict=True):
            kind.__bool__ = own


def _asked(self: Any, known: Callable[[Any], bool], answer: Callable[[], bool]) -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return known(self)
    except GuardOnDataDependentSymNode:
        asking: FrameType | None = sys._getframe(1)
        if asking.f_code is torch.SymInt.__bool__.__code__:
            asking = asking.f_back
        if asking is None or asking.f_globals.get("__name__", "").partition(".")[0] == "torch":
            raise
        return answer()


def size_at(size: object, samples: int) -> int:
    """Return a size for a number of samples, which is the only symbol that it may contain.

    Raises:
        ValueError: it depends on the values in a tensor.
    """
    if not isinstance(size, torch.SymInt):
        assert isinstance(size, int)
        return size
    expression: Any = size.node.expr
    if expression.is_Symbol and not str(expression).startswith("u"):  # nearly all; sympy takes long for the others
        return samples
    if any(str(symbol).startswith("u") for symbol in expression.free_symbols):
        raise ValueError("a size that depends on the values in a tensor")
    return int(expression.subs(dict.fromkeys(expression.free_symbols, samples)))


def guessed(number: float | torch.SymInt | torch.SymFloat, guess: int) -> float:
    """Return a number in which every size that depends on the values in a tensor counts as `guess`."""
    if not isinstance(number, torch.SymInt | torch.SymFloat):
        return float(number)
    return float(number.node.expr.subs(dict.fromkeys(number.node.expr.free_symbols, guess)))


def flatten(tree: object, stops: Callable[[object], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of nested containers, and the containers without leaves. Where `stops` is true is a leaf."""
    return pytree.tree_flatten(tree, is_leaf=stops)


def unflatten(leaves: Sequence[object], spec: TreeSpec) -> Any:
    """Return the containers that `flatten` returned, with these leaves."""
    return leaves[0] if spec.type is None else pytree.tree_unflatten(leaves, spec)  # most models return a leaf


def spec_to_json(spec: TreeSpec) -> str | None:
    """Return containers without leaves as JSON; None if JSON cannot represent one of them."""
    try:
        text = pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError):
        return None
    return None if "defaultdict" in text else text


def spec_from_json(text: str) -> TreeSpec:
    """Return the containers that `spec_to_json` wrote.

    Raises:
        ValueError: the text is something else, or contains a type that is not registered with PyTorch.
    """
    if "defaultdict" in text:  # torch would import the module that the text names
        raise ValueError("a default dictionary is not read")
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, TypeError, KeyError) as error:
        raise ValueError(str(error)) from None


def unregister_buffer(holder: nn.Module, name: str) -> None:
    """Turn a buffer of `holder` into a plain attribute, which is not in its state."""
    tensor = holder._buffers.pop(name, None)
    if tensor is not None:
        holder.__dict__[name] = tensor


def scripted_values(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """Return the buffers and plain attributes of a scripted or traced module itself, by name."""
    held, own = module._concrete_type.get_attributes(), {"training", "_is_full_backward_hook"}  # pyright: ignore
    return {name: getattr(module, name) for name, (_, trains) in held.items() if not (trains or name in own)}


def with_child(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """Return a module with the same forward, parameters, buffers and children, but for one child."""
    made = copy.copy(module)
    made._modules = {**module._modules, name: child}
    return made


def leaf(tree: object, position: int) -> Any:
    """Return one leaf of nested containers."""
    return pytree.tree_leaves(tree)[position]


def is_mutable(target: object) -> bool:
    """True for an operator that writes into one of its arguments."""
    return isinstance(target, OpOverload) and target._schema.is_mutable


def without_write(target: OpOverload) -> OpOverload | None:
    """Return the operator that returns what this one writes into its first argument; None if there is none."""
    namespace, _, name = target._schema.name.partition("::")
    writes = [argument.name for argument in target._schema.arguments if argument.alias_info is not None]
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    overload = getattr(packet, target._overloadname, None)
    plain = name.endswith("_") and writes == [argument.name for argument in target._schema.arguments[:1]]
    return overload if plain and isinstance(overload, OpOverload) and not overload._schema.is_mutable else None


def is_higher_order(target: object) -> bool:
    """True for an operator that contains a graph (a branch on values, a mode of torch)."""
    return isinstance(target, HigherOrderOperator)


def switches_gradients(target: object) -> bool:
    """True for the operator that runs a graph under `torch.no_grad()`, or with gradients switched on again."""
    return is_higher_order(target) and str(target) == "wrap_with_set_grad_enabled"


def is_random(target: object) -> bool:
    """True for an operator that draws random numbers."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def reads_no_values(target: object) -> bool:
    """True for an operator that takes shape, dtype or device of a tensor (`zeros_like`), but not its values."""
    name = target._schema.name.removeprefix("aten::") if isinstance(target, OpOverload) else ""
    return name.endswith("_like") or name.startswith(("new_", "sym_"))


def is_view(target: OpOverload) -> bool:
    """True for an operator whose result shares memory with an argument that it only reads."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in target._schema.returns)


def written_arguments(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Tensor]:
    """Return the tensors among the arguments that an operator writes into, also in lists."""
    arguments = func._schema.arguments
    pairs = [*zip(arguments, args, strict=False), *((each, kwargs.get(each.name)) for each in arguments[len(args) :])]
    given = [value for argument, value in pairs if argument.alias_info is not None and argument.alias_info.is_write]
    return [each for each in flatten(given)[0] if isinstance(each, Tensor)]


def call_directly(module: nn.Module, /, *args: object, **kwargs: object) -> object:
    """Call a module with its hooks, even if its calls are intercepted."""
    return type(module)._call_impl(module, *args, **kwargs)


@contextmanager
def intercepted(module: nn.Module, call: Callable[..., object]) -> Generator[None]:
    """While inside, `module(...)` runs `call(...)`."""
    module.__dict__["_call_impl"] = call
    try:
        yield
    finally:
        module.__dict__.pop("_call_impl", None)


def memory_key(tensor: Tensor) -> int:
    """Return a number that is equal for tensors that share memory, as long as one of them exists."""
    while is_functorch_wrapped_tensor(tensor):  # inside of `torch.func.grad` or `torch.vmap`
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def non_leaf_alias(tensor: Tensor) -> Tensor:
    """Return a tensor that shares memory and gradient with a leaf, but may be written into, unlike a view of it."""
    return torch.ops.aten._unsafe_view.default(tensor, tensor.shape)


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the 2-norm of every tensor (0-d each) in one call; `tensors` must not be empty."""
    return list(torch._foreach_norm(tensors))


def prepare_ddp_backward(ddp: DistributedDataParallel, roots: Sequence[Tensor]) -> None:
    """Let DDP reduce gradients in the next backward, which begins at `roots`, even if DDP's forward did not run."""
    ddp.reducer.prepare_for_backward(list(roots))


def shut_down_within(config: Any, seconds: int) -> None:
    """Let torch's agent (`LaunchConfig`) kill ranks so long after SIGTERM. That of torch 2.11 always waits for 30 s."""
    if hasattr(config, "shutdown_timeout"):
        config.shutdown_timeout = seconds


def own_hooks(module: nn.Module, *, backward: bool) -> list[Callable[..., Any]]:
    """Return the hooks of a module itself that run in its backward, or those before and after its forward."""
    return [hook for table in HOOK_TABLES(module)[slice(2, None) if backward else slice(2)] for hook in table.values()]


def gradient_hooks(parameter: Tensor) -> list[Callable[..., Any]]:
    """Return the hooks that run when a parameter gets a gradient."""
    return [hook for hooks in HOOKS_OF_TENSOR(parameter) for hook in (hooks or {}).values()]


def compiled_form(module: nn.Module) -> Literal["", "wrapper", "method", "in place"]:
    """Return how `torch.compile` has compiled a module: in a wrapper, its method, or in place. Empty: it has not."""
    if type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch._dynamo"):
        return "wrapper"
    method = hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
    return "method" if method else "in place" if COMPILED(module) is not None else ""
