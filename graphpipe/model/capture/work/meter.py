"""Counts the work of what runs on fake tensors."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from graphpipe.graph import ProductPrecision
from graphpipe.model.capture.module_graph.calls.data_flow import Decisions, with_wrapped
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.capture.work.flops import flops_of
from graphpipe.model.capture.work.recurrence import Recurrence, recurrent_layers_at_a_glance
from graphpipe.model.saved_tensors import SavedTensor
from graphpipe.model.torch_private import CONVERSION, DispatchMode, flatten, guessed, is_view, memory_key

_NO_KERNELS = ("prim", "c10d", "profiler", "_c10d_functional")
"""Namespaces of operators that ask, send or note, and compute nothing."""
_PRECISIONS: dict[torch.dtype, ProductPrecision] = {
    **{torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"},
    **{torch.float8_e4m3fnuz: "fp8", torch.float8_e5m2fnuz: "fp8"},
}


class Meter(DispatchMode):
    """Counts the work of one node's kernels while it is entered, together with its `recurrences`.

    Args:
        state: the memory keys of parameters and buffers.
        given: those of the model inputs.
        derived: those of what was computed of parameters and buffers alone. New ones are added.
        alive: keeps tensors, because a memory key is unique only while its tensor is alive.
        decisions: what operators that ask for values are told.
        autocasts: whether autocast makes copies of parameters. `saved_bytes_per_forward` says what moves for these.
        saves_all: count all that operators return as saved, where autograd does not tell what it saves.
    """

    def __init__(
        self,
        state: set[int],
        given: set[int],
        derived: set[int],
        alive: list[Tensor],
        decisions: Decisions,
        *,
        autocasts: bool = False,
        saves_all: bool = False,
    ) -> None:
        super().__init__()
        self.decisions = decisions
        self.saves_all = saves_all
        self.state = state
        self.given = given
        self.derived = derived
        self.autocasts = autocasts
        self.alive = alive
        self.result = Reading()
        self._counts = True

    @property
    def recurrences(self) -> AbstractContextManager[None]:
        """While entered too, recurrent layers are counted."""
        return recurrent_layers_at_a_glance(self._count, self._uncounted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self.decisions.result(func, args, kwargs)
        if func.namespace in _NO_KERNELS or is_view(func):
            return result
        outputs = [item for item in flatten(result)[0] if isinstance(item, Tensor)]
        if not outputs:
            return result
        self.alive += outputs
        self.result.made.update(map(memory_key, outputs))
        if self.autocasts and func is CONVERSION and memory_key(args[0]) in self.state:
            self.derived.update(map(memory_key, outputs))
            self.result.kernels += 1
        elif self._counts:
            operands = [item for item in flatten((args, kwargs))[0] if isinstance(item, Tensor)]
            self.result.kernels += 1
            self._count_traffic(operands, outputs)
            flops = guessed(flops_of(func, args, kwargs, result), SAMPLES[1])
            self.result.flops += flops
            if flops and (precision := _precision(operands)):
                self.result.products[precision] = self.result.products.get(precision, 0.0) + flops
            if func.namespace != "aten":
                self.result.without_formula.add(f"{func.namespace}::{func.overloadpacket.__name__}")
        for output in outputs if self.saves_all else ():
            self.on_save(SavedTensor(output))
        return result

    def _count_traffic(self, operands: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        held, made = self.state | self.derived, {*map(memory_key, outputs)}
        own = [held.isdisjoint(map(memory_key, with_wrapped([each]))) for each in operands]
        if operands and not any(own) and self.state.isdisjoint(made):
            self.derived |= made
            self.result.state_traffic_bytes += sum(map(_bytes, [*operands, *outputs]))
        else:
            self.result.traffic_bytes += sum(map(_bytes, outputs))
            self.result.traffic_bytes += sum(_bytes(each) for each, counts in zip(operands, own, strict=True) if counts)

    @contextmanager
    def _uncounted(self) -> Generator[None]:
        before, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = before

    def _count(self, work: Recurrence) -> None:
        self.result.flops += guessed(work.flops, SAMPLES[1])
        self.result.traffic_bytes += guessed(work.traffic_bytes, SAMPLES[1])
        self.result.kernels += work.kernels
        self.result.step_kernels += work.step_kernels

    def on_save(self, saved: SavedTensor) -> None:
        """Note the memory of a tensor that autograd saves."""
        tensor = saved.tensor
        assert tensor is not None
        key = memory_key(tensor)
        if key in self.derived:
            self.result.saved_of_state[key] = float(_held_bytes(tensor))
        elif key not in self.state | self.given:
            self.alive.append(tensor)
            self.result.saved[key] = guessed(_held_bytes(tensor), SAMPLES[1])

    def on_read(self, saved: SavedTensor) -> None:
        """Do nothing: a backward inside a forward finds all that was saved."""

    def reading(self, value: object) -> Reading:
        """Return the reading, of a node that returned `value`."""
        if isinstance(value, Tensor):
            self.alive.append(value)
            self.result.shape, self.result.dtype = tuple(value.shape), value.dtype
            self.result.requires_grad = value.requires_grad
            self.result.made.add(memory_key(value))
        return self.result


def _precision(operands: Sequence[Tensor]) -> ProductPrecision | None:
    """Return the precision of a product; None is fp32."""
    found = {_PRECISIONS[each.dtype] for each in with_wrapped(operands) if each.dtype in _PRECISIONS}
    narrowest: tuple[ProductPrecision, ...] = ("fp8", "bf16", "fp16")
    return next((each for each in narrowest if each in found), None)


def _held_bytes(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided:  # it has no storage of its own
        return tensor.numel() * tensor.element_size()
    return tensor.untyped_storage().nbytes()


def _bytes(tensor: Tensor) -> float:
    # What depends on values, such as the words of an expert, counts as one row per sample.
    return guessed(tensor.numel() * tensor.element_size(), SAMPLES[1])
