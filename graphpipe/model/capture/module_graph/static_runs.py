"""What opaque submodules return, from runs on fake tensors with two numbers of samples; calls of one kind run once.

torch.export traces with a symbolic number of samples, and symbolic shapes are slow: most of a capture's time went into
the insides of layers, of which the graph has only one call. Here a layer runs on plain sizes, and equal layers with
equal arguments run once for all of them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.data_flow import DataFlow, Decisions
from graphpipe.model.capture.module_graph.failures import CannotExpress
from graphpipe.model.capture.module_graph.module_structure import Structures
from graphpipe.model.recorders import remove_recorders
from graphpipe.model.torch_private import (
    TreeSpec,
    call_directly,
    flatten,
    outside_tracing,
    size_at,
    unflatten,
)

SAMPLES = (8, 63)
"""The two numbers of samples: how a size differs between the runs tells how it grows with samples."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size as a polynomial of the number of samples."""

    constant: int
    linear: int
    square: int

    @staticmethod
    def of(few: int, many: int) -> "Size":
        """Return the polynomial of one term that has these values at SAMPLES, or else the straight line.

        Raises:
            ValueError: neither exists with whole numbers.
        """
        low, high = SAMPLES
        if few == many:
            return Size(few, 0, 0)
        if few * high == many * low and few % low == 0:
            return Size(0, few // low, 0)
        if few * high**2 == many * low**2 and few % low**2 == 0:
            return Size(0, 0, few // low**2)
        slope, rest = divmod(many - few, high - low)
        if rest:
            raise ValueError(f"{few} and {many}")
        return Size(few - slope * low, slope, 0)

    def at(self, samples: Any) -> Any:
        """Return the size for a number of samples, which may be symbolic; `samples` is not read for a constant."""
        # Symbolic arithmetic is slow, so nothing is multiplied by one and no zero is added.
        if not self.linear and not self.square:
            return self.constant
        found = samples * samples * self.square if self.square else samples
        found = found * self.linear if self.linear > 1 else found
        return found + self.constant if self.constant else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A tensor that a call returns, without data."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype

    def empty(self, samples: Any, device: torch.device) -> Tensor:
        """Return a tensor of this form."""
        shape, strides = ([size.at(samples) for size in sizes] for sizes in (self.shape, self.strides))
        return torch.empty_strided(shape, strides, dtype=self.dtype, device=device)

    @property
    def samples_first(self) -> bool:
        """Whether the first dimension is samples."""
        return bool(self.shape) and self.shape[0] == Size(0, 1, 0)

    @property
    def grows(self) -> bool:
        """Whether a size depends on the number of samples."""
        return any(size.linear or size.square for size in (*self.shape, *self.strides))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What a call of an opaque submodule returns, and how it treats its arguments."""

    leaves: tuple[Any, ...]
    """The leaves of the result: a `Form` for every tensor, and constants."""
    spec: TreeSpec
    written: tuple[tuple[int, Form], ...]
    """The tensor arguments, by their position among these, that it wrote into."""
    unread: tuple[int, ...]
    """The tensor arguments whose values it does not read: only their shape, dtype or device."""
    repeatable: bool
    """Whether it has no parameters, draws no random numbers and writes into nothing, so that it may run twice."""
    passed: Mapping[int, int]
    """The leaves of the result that are tensor arguments, by their position among these."""
    beside: frozenset[int]
    """The leaves that cannot be sent between stages because they do not have samples in front, and that are cheap to
    compute: T5's first layer returns a position bias, which all layers read."""

    @property
    def forms(self) -> list[Form]:
        """The tensors among the leaves, then the written arguments."""
        return [*(leaf for leaf in self.leaves if isinstance(leaf, Form)), *(form for _, form in self.written)]


class StaticRuns:
    """Runs the opaque submodules of one model.

    Args:
        root: a copy of the model on fake tensors of `mode`, which nobody else calls.
        mode: of fake tensors.
    """

    def __init__(self, root: nn.Module, mode: AbstractContextManager[object]) -> None:
        remove_recorders(root)  # what they note belongs to the forward around the call
        self.root = root
        self.mode = mode
        self._known: dict[object, CallOutcome] = {}
        self._structures = Structures(root)
        self.hidden: set[str] = set()
        """Submodules inside which glue cannot express what computes their `beside`."""
        self._alive: list[object] = []  # a key may contain the identity of an argument

    def outcome(self, path: str, spec: TreeSpec, leaves: Sequence[Any]) -> CallOutcome:
        """Return the outcome of a call of a submodule.

        Args:
            path: of the submodule.
            spec: the containers of its arguments: (args, kwargs).
            leaves: of its arguments: tensors and numbers, whose sizes may be symbolic, and constants.

        Raises:
            ValueError: the submodule branches on the number of samples.
            CannotExpress: a size depends on the values in a tensor, or grows with samples in a way that is not known.
            Exception: any error of the submodule on fake tensors.
        """
        try:
            given = [[_at(leaf, samples) for leaf in leaves] for samples in SAMPLES]
        except ValueError as error:
            raise CannotExpress(path.rpartition(".")[0], f"passes {path} {error}") from None
        module = self.root.get_submodule(path)
        rest = (module.training, path in self.hidden, str(spec), *(_key(leaf) for each in given for leaf in each))
        if (key := (self._structures.of(path), *rest)) in self._known:
            return self._known[key]
        self._alive += given
        with self._structures.observed(path):
            found = self._run(path, module, spec, given)
        self._known[(self._structures.of(path), *rest)] = found
        return found

    def _run(self, path: str, module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]]) -> CallOutcome:
        with outside_tracing(), self.mode, torch.enable_grad():
            runs = _returning_runs(module, spec, given)
        outcomes = [self._outcome(path, *each) for each in runs]
        if not runs[0][0].decided:
            return outcomes[0]
        # Which arguments are read may depend on values in other ways than were tried.
        outcomes = [replace(each, unread=(), repeatable=False, beside=frozenset[int]()) for each in outcomes]
        if any(each != outcomes[0] for each in outcomes):
            raise CannotExpress(path, "returns something else if the values in a tensor are other ones")
        return outcomes[0]

    def _outcome(self, path: str, few: "_Run", many: "_Run") -> CallOutcome:
        if few.operators != many.operators:
            raise ValueError(f"{path} runs other operators for {SAMPLES[0]} samples than for {SAMPLES[1]}")
        if few.spec != many.spec or few.written != many.written or len(few.tensors) != len(many.tensors):
            raise CannotExpress(path, "returns something else for another number of samples")
        try:
            forms = iter([_form(one, other) for one, other in zip(few.tensors, many.tensors, strict=True)])
        except ValueError as error:
            reason = f"returns tensors of sizes that it is not known how they grow with samples: {error}"
            raise CannotExpress(path, reason) from None
        found = tuple(next(forms) if isinstance(leaf, Tensor) else leaf for leaf in few.leaves)
        alone = {at for at in few.cheap if isinstance(form := found[at], Form) and not form.samples_first}
        if not any(isinstance(leaf, Form) for at, leaf in enumerate(found) if at not in alone):
            alone = set[int]()  # then every reader may repeat the call itself
        return CallOutcome(
            leaves=found,
            spec=few.spec,
            passed=few.passed,
            beside=frozenset(alone if not few.repeatable and path not in self.hidden else ()),
            written=tuple((position, next(forms)) for position in few.written),
            unread=few.unread,
            repeatable=few.repeatable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    leaves: list[Any]
    operators: list[object]
    spec: TreeSpec
    tensors: list[Tensor]
    written: tuple[int, ...]
    unread: tuple[int, ...]
    repeatable: bool
    passed: Mapping[int, int]
    cheap: tuple[int, ...]
    # Leaves that are not arguments, and that are computed without much work. Empty if the call writes anywhere.
    decided: bool
    # Whether it branched on a truth value in a tensor.


def _returning_runs(module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]]) -> list[tuple[_Run, _Run]]:
    # The runs with few and with many samples. A module that branches on truth values in tensors runs twice, once as if
    # all were true and once as if all were false. A run that raises an error is left out, because it ends the training.
    found: list[tuple[_Run, _Run]] = []
    refused: Exception | None = None
    for answer in (True, False):
        decisions = Decisions(answer=answer)
        try:
            few, many = (_call(module, spec, leaves, decisions) for leaves in given)
        except Exception as error:
            if not decisions.count:
                raise
            refused = error
            continue
        found.append((few, many))
        if not few.decided:
            return found
    if not found:
        assert refused is not None
        raise refused
    return found


def _call(module: nn.Module, spec: TreeSpec, leaves: Sequence[Any], decisions: Decisions) -> _Run:
    copies: list[Tensor] = []
    arguments: list[Any] = []
    for leaf in leaves:
        arguments.append(leaf.tensor() if isinstance(leaf, _Blank) else leaf)
        copies += [arguments[-1]] * isinstance(leaf, _Blank)
    args, kwargs = unflatten(arguments, spec)
    with DataFlow(copies, decisions) as flow:
        found, returned = flatten(call_directly(module, *args, **kwargs))
    tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
    written = tuple(position for position, copy in enumerate(copies) if flow.wrote_into(copy))
    tensors += [copies[position] for position in written]
    read = flow.sources(tensors)
    passed = {at: position for at, leaf in enumerate(found) for position, copy in enumerate(copies) if leaf is copy}
    return _Run(
        leaves=found,
        operators=flow.operators,
        spec=returned,
        tensors=[tensor.detach().clone() for tensor in tensors],
        written=written,
        unread=tuple(position for position in range(len(copies)) if position not in read),
        passed=passed,
        cheap=tuple(
            at
            for at, leaf in enumerate(found)
            if isinstance(leaf, Tensor) and at not in passed and not flow.written and flow.is_cheap(leaf)
        ),
        repeatable=not (flow.random or flow.written or next(module.parameters(), None) is not None),
        decided=decisions.count > 0,
    )


@dataclass(frozen=True, slots=True)
class _Blank:
    # A tensor argument for one number of samples.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """Return it without data."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")


def _at(leaf: Any, samples: int) -> Any:
    if isinstance(leaf, Tensor):
        shape, strides = (tuple(size_at(size, samples) for size in sizes) for sizes in (leaf.shape, leaf.stride()))
        return _Blank(shape, strides, leaf.dtype)
    return size_at(leaf, samples) if isinstance(leaf, torch.SymInt) else leaf


def _key(leaf: Any) -> object:
    plain = isinstance(leaf, _Blank | bool | int | float | str | torch.dtype | torch.device | type(None))
    return (type(leaf), leaf) if plain else id(leaf)


def _form(few: Tensor, many: Tensor) -> Form:
    shape, strides = (
        tuple(Size.of(one, other) for one, other in zip(*pair, strict=True))
        for pair in ((few.shape, many.shape), (few.stride(), many.stride()))
    )
    return Form(shape=shape, strides=strides, dtype=few.dtype)
