"""Tensors that reach a whole submodule past its arguments, or leave it past its results, within one forward.

    hidden = self.norm(x, "norm")           sets self.mean in the norm
    return self.norm(hidden, "denorm")      reads it in another call

A graph of calls has no edge for them. Submodules whose forwards are followed need none.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.data_flow import DataFlow, Decisions
from graphpipe.model.hidden.attribute_uses import attribute_uses
from graphpipe.model.hidden.result_types import flatten_open
from graphpipe.model.kept_attributes import CONTAINERS, attributes_kept, hooks_kept, plain_attributes
from graphpipe.model.quiet import quiet_export
from graphpipe.model.torch_private import DispatchMode, answering, flatten, memory_key, own_buffers

_GLUE = -1
"""In place of the number of a call, for what runs between calls."""


def unreturned_values(
    root: nn.Module, whole: Collection[str], inputs: Sequence[Tensor], call: Callable[[], object]
) -> list[str]:
    """Return the paths of the submodules that such tensors leave or reach.

    Only tensors count that depend on the model's inputs or have a gradient. Others are tables, which each submodule
    that runs in another stage computes for itself.

    Args:
        root: the model on fake tensors. Its attributes and hooks are as before afterwards.
        whole: the paths of its opaque submodules.
        inputs: of the model, on which it is called.
        call: calls it.
    """
    decisions = Decisions(answer=True)
    flow = DataFlow(inputs, decisions)
    watch = _Calls(flow, inputs)
    with attributes_kept(root), hooks_kept(root), answering(decisions.decide), flow, watch:
        try:
            with watch.entered(root, whole), quiet_export():
                call()
        except Exception:  # What does not run on fake tensors outside of a trace is left to `gp.check`.
            return []
    return list(dict.fromkeys(watch.found))


def may_keep_values(root: nn.Module) -> bool:
    """Whether a forward, by its code, sets an attribute of its module, or reads a list or dict in one.

    Flags and names do not count, because they are set to other ones. A number may be that of no loss so far.
    """
    return any(_may_keep(module) for module in root.modules())


def _may_keep(module: nn.Module) -> bool:
    if type(module).__module__.startswith("torch.nn."):
        return False
    uses, held = attribute_uses(type(module)), plain_attributes(module)
    kept = [held.get(name) for name in uses.own - own_buffers(module).keys()]
    return any(not isinstance(value, bool | str) for value in kept) or any(
        isinstance(value, CONTAINERS) and name in uses.read for name, value in held.items()
    )


class _Calls(DispatchMode):
    """Observes which call made each tensor, and which calls read it."""

    def __init__(self, flow: DataFlow, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.flow = flow
        self.found: list[str] = []
        self._paths: list[str] = []
        """Of the calls so far."""
        self._running: list[int] = []
        self._public: set[int] = {memory_key(each) for each in inputs}
        """What calls returned, and what was computed between them."""
        self._makers: dict[int, int] = {}
        self._known: list[set[int]] = []
        """Of the calls that are running: the tensors that they were given."""
        self._alive: list[Tensor] = []  # a memory key is unique only while its tensor is alive

    @contextmanager
    def entered(self, root: nn.Module, whole: Collection[str]) -> Generator[None]:
        """Tell of the calls of submodules while inside."""
        with ExitStack() as hooks:
            for path in whole:
                module = root.get_submodule(path)
                enter = module.register_forward_pre_hook(self._enter(path), with_kwargs=True)
                leave = module.register_forward_hook(self._leave)
                for handle in (enter, leave):
                    hooks.callback(handle.remove)
            yield

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._known.append({memory_key(each) for each in _tensors((args, kwargs))})
            self._running.append(len(self._paths))
            self._paths.append(path)

        return enter

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self._running.pop()
        self._known.pop()
        returned = _tensors(result)
        self._alive += returned
        if not self._running:
            self._public |= {memory_key(each) for each in returned}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = [each for each in flatten((args, kwargs or {}))[0] if isinstance(each, Tensor)]
        if func.namespace != "prim":
            for each in operands:
                self._read(each)
        result = func(*args, **(kwargs or {}))
        made = [each for each in flatten(result)[0] if isinstance(each, Tensor)]
        self._alive += made
        known = {memory_key(each) for each in operands}
        for key in {memory_key(each) for each in made} - known:
            self._makers[key] = self._running[0] if self._running else _GLUE
            self._public |= set() if self._running else {key}
        return result

    def _read(self, tensor: Tensor) -> None:
        key = memory_key(tensor)
        maker = self._makers.get(key, _GLUE if key in self._public else None)
        if maker is None or not (tensor.requires_grad or self.flow.sources([tensor])):
            return
        if self._running:
            reader = self._running[0]
            hidden = maker != reader and not any(key in known for known in self._known)
        else:
            reader, hidden = _GLUE, key not in self._public
        if hidden:
            self.found += [self._paths[each] for each in (maker, reader) if each != _GLUE]


def _tensors(value: object) -> list[Tensor]:
    return [each for each in flatten_open(value)[0] if isinstance(each, Tensor)]
