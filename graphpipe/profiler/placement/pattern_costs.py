"""The costs of patterns on backends, measured when the dynamic programme asks for them."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.backend import Backend
from graphpipe.model.backends.eager import EAGER
from graphpipe.model.backends.placed_program import compiled_region
from graphpipe.model.backends.region_programs import region_program
from graphpipe.model.capture.capture import Captured
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.submodules import Submodules
from graphpipe.model.torch_private import flatten
from graphpipe.profiler.placement.frontier_program import Pattern
from graphpipe.profiler.placement.timing import steady_seconds
from graphpipe.profiler.placement.timing_cache import TimingCache

Values = Mapping[str, Tensor]


@dataclass(slots=True, kw_only=True)
class PatternCosts:
    """Measures patterns of one model for one number of samples."""

    called: Submodules
    captured: Captured
    values: Values
    """Every value between operators, and the model's inputs, by name."""
    backends: Sequence[Backend]
    """The backends that run patterns. `eager` runs only single operators: a larger pattern is not faster on it."""
    cache: TimingCache
    clock: Callable[[], float]
    measured: int = 0
    """Patterns that were compiled and timed."""
    costs: dict[Pattern, tuple[float, str] | None] = field(default_factory=dict[Pattern, "tuple[float, str] | None"])

    def cheapest(self, pattern: Pattern) -> tuple[float, str] | None:
        """Return the seconds of a pattern on its cheapest backend, and that backend's name."""
        if pattern not in self.costs:
            ops = [self.captured.graph[name] for name in pattern]
            able = [backend for backend in self.backends if all(map(backend.runs, ops))]
            able = [backend for backend in able if backend.name != EAGER.name or len(pattern) == 1]
            program = region_program(self.called, self.captured, pattern) if able else None
            timed = [(self._seconds(backend, program), backend.name) for backend in able if program is not None]
            self.costs[pattern] = min(((s, name) for s, name in timed if s is not None), default=None)
        return self.costs[pattern]

    def _seconds(self, backend: Backend, program: ModuleStage) -> float | None:
        arguments = [self.values[name] for name in program.arguments]
        key = _pattern_key(backend.name, program.module, arguments)
        if key not in self.cache:
            self.measured += 1
            try:
                self.cache[key] = measured_seconds(backend, program, arguments, self.clock)
            except InvalidInput:
                self.cache[key] = None
        return self.cache[key]


def measured_seconds(
    backend: Backend, program: ModuleStage, arguments: Sequence[Tensor], clock: Callable[[], float]
) -> float:
    """Compile a region, compare its outputs with eager's, and time it.

    Raises:
        InvalidInput: the backend cannot compile it, or its outputs differ by more than it states.
    """
    with torch.no_grad():
        run = compiled_region(program, backend.name, arguments)
        check_outputs(backend, run(*arguments), program.module.eval()(*arguments))
        return steady_seconds(lambda: run(*arguments), clock=clock)


def check_outputs(backend: Backend, outputs: object, expected: object) -> None:
    """Compare the outputs of a backend with eager's.

    Raises:
        InvalidInput: one differs by more than the backend's tolerance.
    """
    for ours, theirs in zip(flatten(outputs)[0], flatten(expected)[0], strict=True):
        if not isinstance(theirs, Tensor):
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise InvalidInput("returns another shape or type", where=f"backend '{backend.name}'")
        scale = float(theirs.abs().max()) if theirs.numel() and theirs.is_floating_point() else 0.0
        if not torch.allclose(ours, theirs, rtol=0.0, atol=backend.relative_tolerance * scale, equal_nan=True):
            worst = float((ours - theirs).abs().max())
            what = f"an output differs by {worst:g} from eager's, more than {backend.relative_tolerance:g} of {scale:g}"
            raise InvalidInput(what, where=f"backend '{backend.name}'", remedy="Place the model without it.")


def _pattern_key(backend: str, module: fx.GraphModule, arguments: Sequence[Tensor]) -> str:
    """Return a digest of a backend, a region, and the shapes and types of its arguments on this machine.

    It does not depend on the names of operators, so equal layers of a model have one key.
    The nodes count by their kind, function and attributes, submodules by their class, attributes and parameters.
    """
    number = {node: position for position, node in enumerate(module.graph.nodes)}

    def index(node: fx.Node) -> Any:
        return f"%{number[node]}"

    lines = [
        f"{node.op} {_target(module, node)} {fx.map_arg(node.args, index)} {fx.map_arg(node.kwargs, index)}"
        for node in number
    ]
    lines += [_form(argument) for argument in arguments]
    lines += [backend, torch.__version__, platform.processor(), platform.machine(), str(torch.get_num_threads())]
    return sha256("\n".join(lines).encode()).hexdigest()


def _target(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return _describe(module.get_submodule(str(node.target)))
    if node.op == "get_attr":
        attribute = getattr(module, str(node.target))
        return _form(attribute) if isinstance(attribute, Tensor) else repr(attribute)
    if node.op == "call_function":
        return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__qualname__', node.target)}"
    return str(node.target) if node.op == "call_method" else ""


def _describe(module: nn.Module) -> str:
    kinds = [f"{type(part).__module__}.{type(part).__qualname__}" for part in module.modules()]
    tensors = [_form(tensor) for tensor in (*module.parameters(), *module.buffers())]
    return " ".join([repr(module), *kinds, *tensors])


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}{[*tensor.shape]}{[*tensor.stride()]}"
