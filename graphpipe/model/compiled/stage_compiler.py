"""Compiles the programs of stages, region by region."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from torch import fx, nn

from graphpipe.model.compiled.halved_backward import HalvedBackward
from graphpipe.model.compiled.own_compilations import Regions, called_parts
from graphpipe.model.compiled.torch_compiler import (
    Compilation,
    region_compiler,
    set_aside,
    set_compiled_call,
    wrapped,
)
from graphpipe.user_frames import describe_error, warn_user

_Call = Callable[..., Any]


@final
@dataclass(slots=True)
class StageCompiler:
    """Compiles the regions of the stages of a rank, equal ones once.

    A region is a submodule that has submodules itself, such as a layer of a transformer. A stage without any, which is
    cut into single operations, is one region. What the user has compiled is a region in any case.
    """

    every: bool = True
    """Whether all regions are compiled, or else only those of the user."""
    sizes_vary: bool = True
    """Whether a region is compiled for any size once it gets a second one, or else for each size."""
    own: Mapping[str, Regions] = field(default_factory=dict[str, Regions])
    """The regions that the user has compiled, by stage."""

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
        held = [part for name, module in stages if name in self.own for part in module.modules()]
        with set_aside(held):
            for part, call in calls:
                set_compiled_call(part, call)
            try:
                yield
            finally:
                for part, _ in calls:
                    set_compiled_call(part, None)

    def install(self, name: str, module: nn.Module) -> bool:
        """Let the layers of a module run compiled from now on, and return whether it has some."""
        composed = [part for part in called_parts(module) if any(True for _ in part.children())]
        if composed:
            for part, call in self._of_stage(name, module):
                set_compiled_call(part, call)
        return bool(composed)

    def _of_stage(self, stage: str, module: nn.Module) -> list[tuple[nn.Module, _Call]]:
        if module not in self._calls:
            self._calls[module] = [
                (part, self._compile(name, part, asked)(part)) for name, part, asked in self._regions(stage, module)
            ]
        return self._calls[module]

    def _regions(self, stage: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, Compilation]]:
        own = {module.get_submodule(name): asked for name, asked in self.own.get(stage, {}).items()}
        for part, asked in own.items():
            yield _label(stage, part), part, asked
        inside = {inner for part in own for inner in part.modules()}
        others = _regions(module, stage) if self.every and module not in inside else ()
        default = Compilation(dynamic=None if self.sizes_vary else False)
        yield from ((name, part, default) for name, part in others if part not in inside)

    def _compile(self, name: str, part: nn.Module, asked: Compilation) -> Callable[[nn.Module], _Call]:
        # One for each kind of layer and its sizes, because it is what equal regions share, and it has few results.
        kind = (name, *(parameter.shape for parameter in part.parameters()), *asked.key)
        if kind not in self._compilers:
            self._compilers[kind] = region_compiler(
                HalvedBackward, partial(self._note, name), partial(self._fail, name), asked
            )
        return self._compilers[kind]

    def _note(self, name: str) -> None:
        self.compilations[name] = self.compilations.get(name, 0) + 1

    def _fail(self, name: str, error: Exception) -> None:
        if name not in self.failed:
            self.failed.add(name)
            warn_user(f"a part of {name} runs eagerly, because the compiler failed: {describe_error(error)}")


def _regions(module: nn.Module, stage: str) -> Iterator[tuple[str, nn.Module]]:
    parts = [wrapped(part) for part in dict.fromkeys(called_parts(module))]
    composed = [part for part in parts if any(True for _ in part.children())]
    if not composed:
        yield f"stage '{stage}'", module
    yield from ((_label(stage, part), part) for part in composed)


def _label(stage: str, part: nn.Module) -> str:
    return f"stage '{stage}'" if isinstance(part, fx.GraphModule) else type(part).__name__
