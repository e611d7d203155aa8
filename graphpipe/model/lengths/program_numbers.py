"""The whole numbers in stage programs, such as the lengths in their glue, and what else they consist of.

Programs for inputs of two lengths consist of the same, if a forward computes the same for both:

    captured at 16      arange(16)   view(x, [N, 16, 4, 8])   add(x, y, alpha=1)
    captured at 24      arange(24)   view(x, [N, 24, 4, 8])   add(x, y, alpha=1)
    made of             arange(#)    view(x, [N,  #, #, #])   add(x, y, alpha=#)
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from graphpipe.model.split.glue_module import GlueModule, constants_of
from graphpipe.model.split.mode_dropout import ModeDropout
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.model.stage_program import ValueSpec

_OWN = (GlueModule, RecomputeRegion, ModeDropout)
"""Modules that are made for a program. All others are the user's."""


@dataclass(frozen=True, slots=True)
class ProgramNumbers:
    """The whole numbers in the programs of all stages, in a fixed order."""

    numbers: tuple[int, ...]
    owners: tuple[str, ...]
    """The value or operator that each number belongs to, for messages."""
    rest: tuple[object, ...]
    """All else that programs consist of. If it is equal, two programs differ in their numbers only."""


def numbers_of(programs: Sequence[ModuleStage]) -> ProgramNumbers:
    """Return the whole numbers in programs."""
    found = _Found(numbers=[], owners=[], rest=[])
    for program in programs:
        found.read(program)
    return ProgramNumbers(tuple(found.numbers), tuple(found.owners), tuple(found.rest))


def with_numbers(programs: Sequence[ModuleStage], numbers: Sequence[int]) -> tuple[ModuleStage, ...]:
    """Return programs with other numbers, in the order of `numbers_of`. They call the same modules of the user."""
    rest = iter(numbers)
    return tuple(_placed(program, rest) for program in programs)


@dataclass(frozen=True, slots=True)
class _Found:
    numbers: list[int]
    owners: list[str]
    rest: list[object]

    def read(self, program: ModuleStage) -> None:
        for specs in (program.receives, program.sends):
            for edge, spec in ((edge, spec) for edge, specs in specs.items() for spec in specs):
                self.rest.append((edge, spec.dtype, spec.requires_grad, len(spec.sample_shape)))
                for size in spec.sample_shape:
                    self.number(spec.name, size)
        outputs = (program.is_output, program.output_spec, program.output_dtypes, program.in_evaluation)
        names = (dict(program.parameter_names), dict(program.buffer_names))
        self.rest.append((program.model_inputs, len(program.arguments), len(program.sent), program.mixes))
        self.rest.append((*outputs, *names))
        for path, glue in _glue(program.module):
            places = {node: place for place, node in enumerate(glue.graph.nodes)}
            for node in places:
                arguments = map_aggregate((node.args, node.kwargs), partial(self.argument, node.name, places))
                self.rest.append((path, node.op, _called(glue, node), repr(arguments)))

    def number(self, owner: str, number: int) -> None:
        self.numbers.append(number)
        self.owners.append(owner)

    def argument(self, owner: str, places: Mapping[fx.Node, int], value: Any) -> Any:
        # Two captures may name their nodes differently.
        if isinstance(value, fx.Node):
            return f"node {places[value]}"
        if type(value) is not int:
            return value
        self.number(owner, value)
        return "number"


def _glue(module: nn.Module) -> Iterator[tuple[str, GlueModule]]:
    return ((path, each) for path, each in module.named_modules() if isinstance(each, GlueModule))


def _called(glue: GlueModule, node: fx.Node) -> object:
    # What a node calls or reads: the same object in each program, but for what was made for it.
    if node.op == "call_module":
        called = glue.get_submodule(str(node.target))
        if isinstance(called, ModeDropout):
            return called.probability
        return called.name if isinstance(called, RecomputeRegion) else id(called)
    if node.op == "placeholder":
        return None
    if node.op != "get_attr":
        return node.target
    value = getattr(glue, str(node.target))
    if str(node.target) not in constants_of(glue) or not isinstance(value, Tensor):
        return id(value) if isinstance(value, Tensor) else value
    return value.dtype, tuple(value.shape), repr(value.tolist())


def _placed(program: ModuleStage, rest: Iterator[int]) -> ModuleStage:
    receives, sends = (_with_sizes(specs, rest) for specs in (program.receives, program.sends))
    module = _copied(program.module)
    for _, glue in _glue(module):
        for node in glue.graph.nodes:
            node.args, node.kwargs = cast(Any, map_aggregate((node.args, node.kwargs), partial(_put, rest)))
        glue.recompile()
    return replace(program, module=module, receives=receives, sends=sends)


def _put(rest: Iterator[int], value: Any) -> Any:
    return next(rest) if type(value) is int else value


def _with_sizes(specs: Mapping[int, tuple[ValueSpec, ...]], rest: Iterator[int]) -> dict[int, tuple[ValueSpec, ...]]:
    return {
        edge: tuple(replace(each, sample_shape=tuple(next(rest) for _ in each.sample_shape)) for each in values)
        for edge, values in specs.items()
    }


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    # Modules and tensors of the user stay the same objects, and a region is not yet told how it keeps what it computes.
    memo: dict[int, Any] = {}
    for each in module.modules():
        if not isinstance(each, _OWN):
            memo[id(each)] = each
            continue
        held = [*each.parameters(recurse=False), *each.buffers(recurse=False)]
        held += [getattr(each, name) for name in constants_of(each)] if isinstance(each, GlueModule) else []
        memo.update((id(tensor), tensor) for tensor in held)
        if isinstance(each, RecomputeRegion) and each.keeper is not None:
            memo[id(each.keeper)] = None
    return copy.deepcopy(module, memo)
