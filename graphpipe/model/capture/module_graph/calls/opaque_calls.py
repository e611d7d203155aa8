"""Calls of opaque submodules, recorded while torch.export traces: each is one operator of the exported program."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.call_outcome import SAMPLES, CallOutcome, Form
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.capture.module_graph.failures import CannotExpress
from graphpipe.model.hidden.result_types import flatten_open, hides_tensors
from graphpipe.model.hidden.watched_tensors import tell_call, using_tensors
from graphpipe.model.recorders import apart, recorders
from graphpipe.model.torch_private import (
    TreeSpec,
    call_directly,
    flatten,
    intercepted,
    is_functorch_wrapped_tensor,
    size_at,
    unflatten,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueCall:
    """One call of an opaque submodule."""

    path: str
    inputs: TreeSpec
    """The containers of the arguments: (args, kwargs)."""
    constants: list[Any]
    """The leaves of the arguments; None in place of each tensor or size."""
    tensor_slots: list[int]
    size_slots: list[int]
    truth_slots: list[int]
    """Truth values in tensors, which are passed after the sizes as 0 or 1."""
    outcome: CallOutcome

    def results(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Return its output tensors, then the arguments that it wrote into, for fake arguments."""
        forms = self.outcome.forms
        samples = _samples(tensors, sizes[: len(self.size_slots)]) if any(form.grows for form in forms) else None
        device = tensors[0].device if tensors else torch.device("cpu")
        return [form.empty(samples, device) for form in forms]


def _samples(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Any:
    # The number of samples, from a size that is a multiple of it.
    symbolic = [size for size in chain(sizes, *(each.shape for each in tensors)) if isinstance(size, torch.SymInt)]
    if symbolic and size_at(symbolic[0], 1) == 1:
        return symbolic[0]
    multiples = {size_at(size, 2) - size_at(size, 1): size for size in symbolic if size_at(size, 0) == 0}
    assert multiples, "a call returns tensors that grow with samples, from arguments that do not"
    least = min(multiples)
    return multiples[least] if least == 1 else multiples[least] // least


_CALLS: ContextVar[list[OpaqueCall]] = ContextVar("opaque calls of the current capture")


@torch.library.custom_op("graphpipe::call", mutates_args=())
def _call(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    # The operator of an opaque call while torch.export traces; never runs on real tensors.
    raise AssertionError("an opaque call was traced, and then run as an operator")


@_call.register_fake
def _(tensors: list[Tensor], sizes: list[int], index: int) -> list[Tensor]:
    return _CALLS.get()[index].results(tensors, sizes)


def is_opaque_call(target: object) -> bool:
    """True for the operator of an opaque call; its last argument is the position in the list of `recording`."""
    return target is torch.ops.graphpipe.call.default


@contextmanager
def recording(root: nn.Module, paths: Sequence[str], runs: StaticRuns) -> Generator[list[OpaqueCall]]:
    """While inside, calls of these submodules are traced as one operator each, and listed in order."""
    calls: list[OpaqueCall] = []
    token = _CALLS.set(calls)
    try:
        with ExitStack() as stack:
            for path in paths:
                module = root.get_submodule(path)
                stack.enter_context(intercepted(module, _recorder(path, module, runs, calls)))
            yield calls
    finally:
        _CALLS.reset(token)


def _recorder(path: str, module: nn.Module, runs: StaticRuns, calls: list[OpaqueCall]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        leaves, spec = flatten_open((args, kwargs))
        tell_call(path)
        try:
            outcome = runs.outcome(path, spec, leaves)
        except CannotExpress:
            raise
        except Exception:
            with suppress(CannotExpress):  # The direct call is traced, and says only that this cannot be.
                call_directly(module, *args, **kwargs)  # fails as well, with an error that names the number of samples
            raise
        _check_visible(path, outcome, leaves)
        tensors = [slot for slot, value in enumerate(leaves) if isinstance(value, Tensor)]
        sizes = [slot for slot, value in enumerate(leaves) if isinstance(value, torch.SymInt)]
        truths = [slot for slot, value in enumerate(leaves) if isinstance(value, torch.SymBool)]
        constants = [None if slot in (*tensors, *sizes, *truths) else value for slot, value in enumerate(leaves)]
        calls.append(
            OpaqueCall(
                path=path,
                inputs=spec,
                constants=constants,
                tensor_slots=tensors,
                size_slots=sizes,
                truth_slots=truths,
                outcome=outcome,
            )
        )
        given = [leaves[slot] for slot in tensors]
        if any(map(is_functorch_wrapped_tensor, given)):
            raise CannotExpress(path.rpartition(".")[0], f"calls '{path}' inside of torch.vmap or torch.func")
        numbers = [*(leaves[slot] for slot in sizes), *(torch.sym_ite(leaves[slot], 1, 0) for slot in truths)]
        rest = iter(torch.ops.graphpipe.call(given, numbers, len(calls) - 1))
        outputs = [next(rest) if isinstance(leaf, Form) else leaf for leaf in outcome.leaves]
        for (position, _), value in zip(outcome.written, rest, strict=True):
            given[position].copy_(value)
        for at, position in outcome.passed.items():
            outputs[at] = given[position]
        if outcome.beside:  # traced as glue, of which only what these leaves need is kept
            with apart(module), using_tensors(None):
                inside, _ = flatten(call_directly(module, *args, **kwargs))
            for at in outcome.beside:
                outputs[at] = inside[at]
        if hooks := recorders(module):
            shown = [_by_samples(each, given) if isinstance(each, Tensor) else each for each in outputs]
            for hook in hooks:
                hook(module, args, unflatten(shown, outcome.spec))
        return unflatten(outputs, outcome.spec)

    return call


def _check_visible(path: str, outcome: CallOutcome, given: Sequence[object]) -> None:
    # What reads a tensor inside such an object would read one of the run on fake tensors, as if it were a constant.
    for leaf in outcome.leaves:
        if not isinstance(leaf, Form) and hides_tensors(leaf) and not any(leaf is each for each in given):
            what = f"returns a {type(leaf).__name__}, whose tensors PyTorch cannot look into"
            raise CannotExpress(path, what, "Return tensors, tuples, lists, dicts or a dataclass.", follow=True)


def _by_samples(tensor: Tensor, given: Sequence[Tensor]) -> Tensor:
    # A recorded tensor with several rows for each sample, such as the scores of a router for each word, gets samples in
    # front and loses them again, so that a cut may send it in between. The rows of a sample follow each other.
    few, many = (size_at(tensor.shape[0], samples) if tensor.dim() else 0 for samples in SAMPLES)
    rows, rest = divmod(few, SAMPLES[0])
    if rest or rows < 2 or many != rows * SAMPLES[1]:
        return tensor
    samples = _samples(given, [])
    return tensor.reshape(samples, rows, *tensor.shape[1:]).reshape(tensor.shape)
