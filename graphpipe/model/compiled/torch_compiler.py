"""Every use of the private API of torch's compiler. Each function has a test."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import CellType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._guards import TracingContext, detect_fake_mode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from graphpipe.model.hidden.compiled_modules import WRAPPED
from graphpipe.model.torch_private import compiled_form

# pyright: reportPrivateUsage=false

_NUMBERS = count()
_MOST_SIZES = 64


@dataclass(frozen=True, slots=True)
class Compilation:
    """How a module is compiled."""

    backend: Callable[[fx.GraphModule, Sequence[Any]], Any] | None = None
    """None is inductor."""
    name: str = "inductor"
    """Of the backend."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of inductor, also those that its mode stands for."""
    dynamic: bool | None = None
    """Whether sizes are variable. None: those that change are."""
    path: str = ""
    """The name in the user's model of the module that the user has compiled; empty for the whole model."""

    @property
    def key(self) -> tuple[object, ...]:
        """The same for modules that are compiled alike."""
        return id(self.backend), repr(sorted(self.options.items())), self.dynamic


def compilation_of(module: nn.Module) -> Compilation:
    """Return how a user has compiled a module, in a wrapper or in place, as far as torch tells."""
    compiled: Any = vars(module).get("dynamo_ctx") or next(
        (
            cell.cell_contents
            for cell in getattr(module._compiled_call_impl, "__closure__", None) or ()
            if type(cell.cell_contents).__name__ == "OptimizeContext"
        ),
        None,
    )
    found: Any = getattr(compiled, "callback", None)
    while found is not None and not hasattr(found, "_compiler_name"):
        found = getattr(found, "_torchdynamo_orig_backend", None)
    dynamic = getattr(compiled, "_dynamic", None)
    if found is None:
        return Compilation(dynamic=dynamic)
    if found._compiler_name == "inductor":
        return Compilation(options=dict(getattr(found, "config", {})), dynamic=dynamic)
    return Compilation(backend=found, name=found._compiler_name, dynamic=dynamic)


def wrapped(module: nn.Module) -> nn.Module:
    """Return the module in a wrapper of `torch.compile`, or else the module itself."""
    return cast("nn.Module", vars(module)["_modules"][WRAPPED]) if compiled_form(module) == "wrapper" else module


@contextmanager
def set_aside(modules: Iterable[nn.Module]) -> Generator[None]:
    """Let what a user has compiled among modules run eagerly in a block, or as `set_compiled_call` says."""
    forms = [(module, compiled_form(module)) for module in modules]
    wrappers = [(module, vars(module)["forward"]) for module, form in forms if form == "wrapper"]
    calls = [(module, module._compiled_call_impl) for module, form in forms if form == "in place"]
    for module, _ in wrappers:
        vars(module)["forward"] = wrapped(module)
    for module, _ in calls:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, forward in wrappers:
            vars(module)["forward"] = forward
        for module, call in calls:
            module._compiled_call_impl = call


def region_compiler(
    backward: Callable[[fx.GraphModule, Callable[[fx.GraphModule], Any], Sequence[int]], Callable[[list[Any]], Any]],
    note: Callable[[], None],
    fail: Callable[[Exception], None],
    asked: Compilation | None = None,
) -> Callable[[nn.Module], Callable[..., Any]]:
    """Return a function that takes a module, and returns what `module(...)` does, hooks included, compiled.

    It is compiled when it runs, by inductor with a backward of one's own. Equal modules are compiled once.

    Random numbers are those of the eager module. The backward may run again, so it takes nothing of what was saved.

    Args:
        backward: gets the graph of a backward, a function that compiles a graph, and the places of the tensors among
            the arguments of the forward. Returns the compiled backward, which takes its arguments in a list.
        note: called at each compilation of a part of a forward.
        fail: called with an error of the compiler. What it could not compile runs eagerly.
        asked: how the user has compiled the region; None takes the defaults.
    """
    asked = asked or Compilation()
    from torch._dynamo.exc import RestartAnalysis
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # some seconds

    patches = {**asked.options, "fallback_random": True}

    def compile_other(graph: fx.GraphModule, given: Sequence[Any]) -> Any:
        assert asked.backend is not None
        note()
        return asked.backend(graph, given)

    def compile_region(graph: fx.GraphModule, given: Sequence[Any]) -> Any:
        tensors: list[int] = []

        def compile_part(part: fx.GraphModule, given: Sequence[Any], **options: Any) -> Any:
            if not options.get("is_backward"):
                # The halves of a backward read what was saved twice. Torch's own setting is that of one thread.
                if (about := TracingContext.get().fw_metadata) is not None:
                    about.bw_donated_idxs = []
                tensors[:] = [place for place, each in enumerate(given) if isinstance(each, Tensor)]
                return compile_fx_inner(part, given, **options)
            kept = {name: options[name] for name in ("graph_id", "boxed_forward_device_index") if name in options}
            # What the compiled forward saves may lie in memory in another order than what was traced.
            FakeTensorProp(part, detect_fake_mode(given)).propagate_dont_convert_inputs(*given)

            def compile_backward(graph: fx.GraphModule) -> Any:
                results = graph.graph.output_node()
                results.meta["user_visible_output_idxs"] = [*range(len(cast("Any", results.args[0])))]
                examples = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
                try:
                    return compile_fx_inner(graph, examples, is_backward=True, **kept)
                except RestartAnalysis:
                    raise
                except Exception as error:  # the compiler raises errors of any kind
                    fail(error)
                    return partial(_eagerly, graph)

            compiled = backward(part, compile_backward, tuple(tensors))

            def run(arguments: list[Any]) -> Any:
                return compiled(arguments)

            run._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
            return run

        note()
        with config.patch(donated_buffer=False, enable_autograd_cache=False):
            try:
                return compile_fx(graph, given, inner_compile=compile_part, config_patches=patches)
            except RestartAnalysis:  # not an error: the compiler begins again, and knows more
                raise
            except Exception as error:  # likewise
                fail(error)
                return graph

    # The compiler keeps a few results for each code object, and takes a size for variable that differs between calls of
    # code of one name. So each kind of region has code and a name of its own.
    code = _called(nn.Identity()).__code__.replace(co_name=f"region_{next(_NUMBERS)}")
    used: Any = compile_region if asked.backend is None else compile_other
    return lambda module: torch.compile(
        FunctionType(code, globals(), None, None, (CellType(module),)), backend=used, dynamic=asked.dynamic
    )


@contextmanager
def each_size() -> Generator[None]:
    """Let a region be compiled for more sizes in a block than torch does by itself, which gives up after a few."""
    from torch._dynamo import config  # some seconds

    with config.patch(recompile_limit=_MOST_SIZES):
        yield


def _eagerly(graph: fx.GraphModule, arguments: list[Any]) -> Any:
    return graph(*arguments)


def _called(module: nn.Module) -> FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # The compiler passes over functions of torch.nn itself.

    return cast("FunctionType", call)


def set_compiled_call(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Let `module(...)` run a function of `region_compiler`; None lets it run eagerly."""
    module._compiled_call_impl = call
