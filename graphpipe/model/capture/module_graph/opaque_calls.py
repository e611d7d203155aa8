"""Calls of opaque submodules, recorded while torch.export traces: each is one operator of the exported program."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.data_flow import DataFlow
from graphpipe.model.torch_private import (
    TreeSpec,
    call_directly,
    flatten,
    intercepted,
    unflatten,
)


@dataclass(slots=True, kw_only=True)
class OpaqueCall:
    """One call of an opaque submodule."""

    path: str
    module: nn.Module
    inputs: TreeSpec
    """The containers of the arguments: (args, kwargs)."""
    constants: list[Any]
    """The leaves of the arguments; None in place of each tensor or size."""
    tensor_slots: list[int]
    size_slots: list[int]
    outputs: list[Any] = field(default_factory=list)
    """The leaves of the result: fake tensors and constants."""
    output_spec: TreeSpec | None = None
    mutated: list[int] = field(default_factory=list)
    """Positions in `tensor_slots` of the arguments that it wrote into; their new values follow the outputs."""
    unread: list[int] = field(default_factory=list)
    """Positions in `tensor_slots` of the arguments whose values it does not read: only their shape, dtype or device."""
    repeatable: bool = False
    """Whether it has no parameters, draws no random numbers and writes into nothing, so that it may run twice."""

    def run(self, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Run the module on fake tensors; return its output tensors, then the arguments that it wrote into."""
        leaves, copies = list(self.constants), [tensor.clone() for tensor in tensors]
        for slot, value in [*zip(self.tensor_slots, copies, strict=True), *zip(self.size_slots, sizes, strict=True)]:
            leaves[slot] = value
        args, kwargs = unflatten(leaves, self.inputs)
        with DataFlow(copies) as flow:
            result = call_directly(self.module, *args, **kwargs)
        self.outputs, self.output_spec = flatten(result)
        tensors_out = [output for output in self.outputs if isinstance(output, Tensor)]
        self.mutated = [position for position, copy in enumerate(copies) if flow.wrote_into(copy)]
        read = flow.sources([*tensors_out, *(copies[position] for position in self.mutated)])
        self.unread = [position for position in range(len(copies)) if position not in read]
        self.repeatable = not (flow.random or flow.written or next(self.module.parameters(), None) is not None)
        return [tensor.clone() for tensor in [*tensors_out, *(copies[position] for position in self.mutated)]]


_CALLS: ContextVar[list[OpaqueCall]] = ContextVar("opaque calls of the current capture")


@torch.library.custom_op("graphpipe::call", mutates_args=())
def _call(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    # The operator of an opaque call while torch.export traces; never runs on real tensors.
    raise AssertionError("an opaque call was traced, and then run as an operator")


@_call.register_fake
def _(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    return _CALLS.get()[index].run(tensors, sizes)


def is_opaque_call(target: object) -> bool:
    """True for the operator of an opaque call; its last argument is the position in the list of `recording`."""
    return target is torch.ops.graphpipe.call.default


@contextmanager
def recording(root: nn.Module, paths: Sequence[str]) -> Generator[list[OpaqueCall]]:
    """While inside, calls of these submodules are traced as one operator each, and listed in order."""
    calls: list[OpaqueCall] = []
    token = _CALLS.set(calls)
    try:
        with ExitStack() as stack:
            for path in paths:
                module = root.get_submodule(path)
                stack.enter_context(intercepted(module, _recorder(path, module, calls)))
            yield calls
    finally:
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
