"""Which arguments of a call its results depend on, observed operator by operator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.capture.module_graph.calls.mixed_samples import mixes
from graphpipe.model.capture.module_graph.calls.weight_writes import RENORM
from graphpipe.model.capture.work.flops import has_formula
from graphpipe.model.hidden.known_values import have_data
from graphpipe.model.torch_private import (
    GROUPED_PRODUCT,
    DispatchMode,
    flatten,
    is_mutable,
    is_random,
    memory_key,
    outside_tracing,
    reads_no_values,
    written_arguments,
)

_MOST_DECISIONS = 100
_PLAIN: Any = Tensor
_NUMBER = torch.ops.aten._local_scalar_dense.default
"""Asks for the value of a tensor of one element."""
_EQUAL = torch.ops.aten.equal.default
"""Asks whether all values of two tensors are the same. `istft` does, to check its window."""
GUESS = 2
"""In place of a number in a tensor, for what a call costs. Its results have known shapes without it."""
TRUTH = object()
"""In place of an argument of a call that is a truth value in a tensor."""


class NumberNeeded(Exception):
    """A forward asked for a number in a tensor, and then failed. The cause is its error."""


class Decisions:
    """Answers the questions of a forward for truth values in tensors without data.

    Args:
        answer: to every question after the first ones.
        first: the answers to the first questions.
        number: in place of every whole number that a forward asks for. None leaves it open. Most of torch's operators
            accept such a size, but `F.interpolate` does not.
    """

    def __init__(self, *, answer: bool, first: Sequence[bool] = (), number: int | None = None) -> None:
        self.answer = answer
        self.first = first
        self.number = number
        self.count = 0
        """The questions so far."""
        self.asked = False
        """Whether a number was left open."""
        self.split = False
        """Whether a tensor was split by sizes that depend on values."""

    def known(self, result: Any) -> Any:
        """Return the answer for the result of an operator that asks, or for `TRUTH`, and any other result as it is.

        Raises:
            RuntimeError: too many questions, as from a loop until a value changes.
        """
        if result is not TRUTH and not isinstance(result, torch.SymBool):
            return result
        return self.decide()

    def result(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator on fake tensors, or the answer if it asks.

        A loop over a number of rows that depends on values runs once, or not at all: a mixture of experts may loop over
        the experts that some word is sent to. The parts of a tensor whose sizes depend on values are nearly equal:
        attention may take one image after the other. What is computed from small tensors with data, such as a mask
        that says which columns are numbers, has data too.

        Raises:
            RuntimeError: as `known`.
        """
        if have_data(args, kwargs) and not is_mutable(func) and not is_random(func):
            with outside_tracing():
                return func(*args, **kwargs)
        if func is torch.ops.aten.unbind.int and _rows_are_unknown(*args, **kwargs):
            row = args[0].sum(0).to(args[0].dtype)  # has the shape of a row, and depends on the same values
            return [row] * self.decide()
        if func is torch.ops.aten.split_with_sizes.default and any(not isinstance(each, int) for each in args[1]):
            self.split = True
            return func(args[0], _nearly_equal(args[0], len(args[1]), *args[2:]), *args[2:], **kwargs)
        if func is _EQUAL:
            return self.decide()
        found = _call(func, args, kwargs)
        if func is _NUMBER and isinstance(found, torch.SymInt):
            if self.number is None:
                self.asked = True
                return found
            self.count += not self.count  # a loop may ask for the numbers of each sample
            return self.number
        return self.known(found)

    def decide(self) -> bool:
        """Return the answer to a question.

        Raises:
            RuntimeError: as `known`.
        """
        self.count += 1
        if self.count > _MOST_DECISIONS:
            raise RuntimeError("a loop that depends on the values in a tensor")
        return self.first[self.count - 1] if self.count <= len(self.first) else self.answer


def _nearly_equal(tensor: Tensor, count: int, dim: int = 0) -> list[int]:
    # Sizes of so many parts; they differ by one at most.
    total = tensor.shape[dim]
    return [total * (number + 1) // count - total * number // count for number in range(count)]


def _rows_are_unknown(tensor: Tensor, dim: int = 0) -> bool:
    return dim in (0, -tensor.dim()) and isinstance(tensor.shape[0], torch.SymInt)


MIXED = -1
"""In place of the position of an argument: a value in which samples are mixed."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operator, with shapes of its floating-point arguments and results. A size that depends on values is None."""

    function: Any
    read: list[tuple[int | None, ...]]
    returned: list[tuple[int | None, ...]]

    def mixes(self, other: "Step", args: Sequence[Any]) -> str:
        """Return the operator's name if it mixes samples, given the same step of a run with fewer; else nothing."""
        alike = other.function is self.function and len(other.read) == len(self.read)
        if not alike or len(other.returned) != len(self.returned):
            return ""
        read, returned = zip(other.read, self.read, strict=True), zip(other.returned, self.returned, strict=True)
        return mixes(self.function, args, [*read], [*returned])


def _shapes(tensors: Sequence[Tensor]) -> list[tuple[int | None, ...]]:
    found = [each.shape for each in tensors if each.is_floating_point()]
    return [tuple(None if isinstance(size, torch.SymInt) else size for size in shape) for shape in found]


class DataFlow(DispatchMode):
    """While inside, observes which tensors are computed from the values of which arguments.

    A tensor that only takes over the shape, dtype or device of an argument (`zeros_like`) does not depend on it.
    Tensors that share memory count as one, so views and writes are included. A tensor that wraps others, as torchao's
    8-bit values with their factor, depends on what is in it.

    Args:
        arguments: of the call.
        decisions: of branches on truth values in tensors.
        like: the steps of a run with another number of samples, to see which operators mix samples.
    """

    def __init__(self, arguments: Sequence[Tensor], decisions: Decisions, like: Sequence[Step] = ()) -> None:
        super().__init__()
        self.like = like
        self.steps: list[Step] = []
        self.mixing = ""
        """The first operator that mixes samples."""
        self.decisions = decisions
        self.random = False
        """Whether an operator drew random numbers."""
        self.operators: list[object] = []
        """In order of execution."""
        self.written: list[Tensor] = []
        """The tensors that operators wrote into, other than those that the call made itself."""
        self.numbers = frozenset[int]()
        """The arguments of which the call has asked for numbers, with which it may do anything."""
        self.read: list[Tensor] = []
        """The tensors that operators read, other than the arguments and those that the call made itself."""
        self._made: set[int] = set()
        self._costly: set[int] = set()
        self._alive: list[Tensor] = [*arguments]  # a memory key is unique only while its tensor is alive
        self._sources: dict[int, frozenset[int]] = {}
        for position, tensor in enumerate(arguments):
            self._sources[memory_key(tensor)] = self.sources([tensor]) | {position}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self.decisions.result(func, args, kwargs)
        self.random |= is_random(func)
        operands = [each for each in flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        written = [] if func is RENORM else written_arguments(func, args, kwargs)
        results = [each for each in flatten(result)[0] if isinstance(each, Tensor)]
        known = {memory_key(each) for each in operands}
        reads = not reads_no_values(func)
        if func.namespace != "prim":  # questions for the device, whose answers torch remembers
            self.operators.append(func)
            self.read += [each for each in operands if reads and memory_key(each) not in self._sources]
        found = self.sources(operands) if reads else frozenset[int]()
        found = self._with_mixed(func, args, operands, results, found)
        if func is _NUMBER:
            self.numbers |= found
        costly = is_random(func) or has_formula(func) or not self._costly.isdisjoint(known)
        for tensor in with_wrapped((*results, *written)):
            key = memory_key(tensor)
            self._costly |= {key} if costly else set()
            self._sources[key] = self._sources.get(key, frozenset()) | found
        self.written += [tensor for tensor in written if memory_key(tensor) not in self._made]
        self._made |= {memory_key(each) for each in results} - known
        self._alive += results
        return result

    def _with_mixed(
        self, func: Any, args: Any, operands: list[Tensor], results: list[Tensor], found: frozenset[int]
    ) -> frozenset[int]:
        # Numbers of rows, as of an expert, depend on all samples, and what is computed with them does not.
        if func.namespace == "prim":
            return found
        step = Step(func, _shapes(operands), _shapes(results))
        self.steps.append(step)
        if results and not any(each.is_floating_point() or each.dtype is torch.bool for each in results):
            return found - {MIXED}
        before = self.like[len(self.steps) - 1] if len(self.steps) <= len(self.like) else step
        if name := step.mixes(before, args):
            self.mixing = self.mixing or name
            return found | {MIXED}
        return found

    def sources(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        """Return the positions of the arguments that these tensors were computed from."""
        return frozenset[int]().union(*(self._sources.get(memory_key(each), ()) for each in with_wrapped(tensors)))

    def is_cheap(self, tensor: Tensor) -> bool:
        """True if neither products of matrices nor random numbers are in what a tensor was computed from."""
        return memory_key(tensor) not in self._costly

    def wrote_into(self, tensor: Tensor) -> bool:
        """True if an operator wrote into the memory of this argument."""
        return any(memory_key(tensor) == memory_key(each) for each in self.written)


def with_wrapped(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors, and behind each that wraps others, those in it."""
    # Tensors of no such class and Parameters dispatch alike.
    found: list[Tensor] = []
    for tensor in tensors:
        found.append(tensor)
        kind: Any = type(tensor)
        if hasattr(kind, "__tensor_flatten__"):
            inside = [getattr(tensor, name) for name in kind.__tensor_flatten__(tensor)[0]]
        else:
            inside = [] if kind.__torch_dispatch__ is _PLAIN.__torch_dispatch__ else [*vars(tensor).values()]
        found += with_wrapped(each for each in inside if isinstance(each, Tensor))
    return found


def _call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    # For a product of rows by groups, with one matrix per group, torch accepts only bfloat16 on fake tensors, although
    # the operator itself accepts float32.
    if func.overloadpacket is GROUPED_PRODUCT and args[0].dim() == 2 and args[1].dim() == 3:
        return args[0].new_empty((args[0].shape[0], args[1].shape[2]))
    return func(*args, **kwargs)
