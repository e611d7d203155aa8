"""Compiles the programs of stages, region by region."""

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from torch import fx, nn

from graphpipe.model.compiled.halved_backward import HalvedBackward
from graphpipe.model.compiled.torch_compiler import region_compiler, set_compiled_call
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.user_frames import describe_error, warn_user

_Call = Callable[..., Any]


@final
@dataclass(slots=True)
class StageCompiler:
    """Compiles the regions of the stages of a rank, equal ones once.

    A region is a submodule that has submodules itself, such as a layer of a transformer. A stage without any, which is
    cut into single operations, is one region.
    """

    compilations: dict[str, int] = field(default_factory=dict[str, int])
    """How often forwards were compiled, by the name of a region: its class, or its stage."""
    failed: set[str] = field(default_factory=set[str])
    """The names of regions of which a part could not be compiled, and runs eagerly."""
    _compilers: dict[Hashable, Callable[[nn.Module], _Call]] = field(
        default_factory=dict[Hashable, Callable[[nn.Module], _Call]]
    )
    _calls: dict[nn.Module, list[tuple[nn.Module, _Call]]] = field(
        default_factory=dict[nn.Module, list[tuple[nn.Module, _Call]]]
    )

    @contextmanager
    def running(self, stages: Sequence[tuple[str, nn.Module]]) -> Generator[None]:
        """Let the regions of stages run compiled in the block. After it they are the user's modules again.

        Args:
            stages: names and modules.
        """
        calls = [call for name, module in stages for call in self._of_stage(name, module)]
        for part, call in calls:
            set_compiled_call(part, call)
        try:
            yield
        finally:
            for part, _ in calls:
                set_compiled_call(part, None)

    def _of_stage(self, stage: str, module: nn.Module) -> list[tuple[nn.Module, _Call]]:
        if module not in self._calls:
            regions = _regions(module, stage)
            self._calls[module] = [(part, self._compile(name, part)(part)) for name, part in regions]
        return self._calls[module]

    def _compile(self, name: str, part: nn.Module) -> Callable[[nn.Module], _Call]:
        # One for each kind of layer and its sizes, because it is what equal regions share, and it has few results.
        kind = (name, *(parameter.shape for parameter in part.parameters()))
        if kind not in self._compilers:
            self._compilers[kind] = region_compiler(
                HalvedBackward, partial(self._note, name), partial(self._fail, name)
            )
        return self._compilers[kind]

    def _note(self, name: str) -> None:
        self.compilations[name] = self.compilations.get(name, 0) + 1

    def _fail(self, name: str, error: Exception) -> None:
        if name not in self.failed:
            self.failed.add(name)
            warn_user(f"a part of {name} runs eagerly, because the compiler failed: {describe_error(error)}")


def _regions(module: nn.Module, stage: str) -> Iterator[tuple[str, nn.Module]]:
    whole = f"stage '{stage}'"
    parts = [*dict.fromkeys(_called(module))]
    composed = [part for part in parts if any(True for _ in part.children())]
    for part in composed:
        yield whole if isinstance(part, fx.GraphModule) else type(part).__name__, part
    if not composed:
        yield whole, module


def _called(module: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(module, fx.GraphModule):
        yield from module.children()
        return
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = module.get_submodule(str(node.target))
            # What a region keeps is decided outside of what is compiled.
            yield from _called_in(part.inner) if isinstance(part, RecomputeRegion) else [part]


def _called_in(region: nn.Module) -> list[nn.Module]:
    parts = [*_called(region)]
    return parts if any(True for part in parts for _ in part.children()) else [region]
