"""What opaque submodules return, from runs on fake tensors with two numbers of samples; calls of one kind run once.

torch.export traces with a symbolic number of samples, and symbolic shapes are slow: most of a capture's time went into
the insides of layers, of which the graph has only one call. Here a layer runs on plain sizes, and equal layers with
equal arguments run once for all of them.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.answered_runs import Runs, returning_runs, runs_of_every_way
from graphpipe.model.capture.module_graph.calls.call_outcome import SAMPLES, CallOutcome, Form
from graphpipe.model.capture.module_graph.calls.data_flow import TRUTH
from graphpipe.model.capture.module_graph.calls.module_structure import Structures
from graphpipe.model.capture.module_graph.calls.static_run import BlankArgument, StaticRun
from graphpipe.model.capture.module_graph.failures import CannotExpress, OtherOperators
from graphpipe.model.hidden.real_call import real_copy
from graphpipe.model.hidden.registered_tensors import RegisteredTensors
from graphpipe.model.hidden.watched_tensors import TensorUse, using_tensors
from graphpipe.model.recorders import apart
from graphpipe.model.torch_private import TreeSpec, is_view, outside_tracing, size_at

_ALLOWED = TensorUse(
    own_backward=lambda name: None, new_data=lambda tensor: None, new_parameter=lambda module, name: None
)
"""A submodule that stays whole may use tensors in any way. Its own code runs in training."""
_DISTANCES = {torch.ops.aten._cdist_forward.default, torch.ops.aten._euclidean_dist.default}
"""What `torch.cdist` is, for few points and for many."""


_BY_VALUES = (
    "Let each branch return tensors of the same shapes, and change the same weights. A buffer that only tells whether "
    "the forward was called before has no value here: keep that in a plain attribute (self.called = True), and run the "
    "model once before the capture."
)


class StaticRuns:
    """Runs the opaque submodules of one model.

    Args:
        root: a copy of the model on fake tensors of `mode`, which nobody else calls.
        mode: of fake tensors.
        registered: the tensors of the model and of its copies.
    """

    def __init__(self, root: nn.Module, mode: AbstractContextManager[object], registered: RegisteredTensors) -> None:
        self.root = root
        self.mode = mode
        self.registered = registered
        self.reaching: list[str] = []
        """Submodules whose forwards read a parameter or buffer of another one."""
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
        rest = (path in self.hidden, str(spec), *(_key(leaf) for each in given for leaf in each))
        if (key := (self._structures.of(path), module.training, *rest)) in self._known:
            return self._known[key]
        self._alive += given
        with self._structures.observed(path):
            found = self._run(path, module, spec, given)
        structure = self._structures.of(path)
        in_training = self._known.get((structure, True, *rest))
        if in_training is not None and not module.training:
            found = _no_more_than(found, in_training)
        self._known[(structure, module.training, *rest)] = found
        return found

    def _run(self, path: str, module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]]) -> CallOutcome:
        with outside_tracing(), self.mode, torch.enable_grad(), apart(module), using_tensors(_ALLOWED):
            try:
                runs = returning_runs(module, spec, given)
            except Exception as error:
                runs = self._real_runs(module, spec, given, error)
            decided = runs[0][0].decided
            ways = runs_of_every_way(module, spec, given) if decided and runs[0][0].repeatable else []
        if self.registered.elsewhere(runs[0][0].read, module) is not None:
            self.reaching.append(path)
        outcomes = [self._outcome(path, *each) for each in runs]
        if not decided:
            return outcomes[0]
        # Which arguments are read may depend on values in other ways than were tried.
        # A first call may choose a weight by the samples, and later ones leave it as it is.
        changed = tuple(dict.fromkeys(name for each in outcomes for name in each.changed))
        statistic = next((each.statistic for each in outcomes if each.statistic), "")
        if any(each.statistic != statistic for each in outcomes):  # only where it chooses a buffer, it mixes samples
            changed = tuple(dict.fromkeys((*changed, *(f"{path}.{name}" for few, _ in runs for name in few.buffers))))
        outcomes = [replace(_cautious(each), changed=changed, statistic=statistic) for each in outcomes]
        if any(each != outcomes[0] for each in outcomes):
            raise CannotExpress(path, "returns something else if the values in a tensor are other ones", _BY_VALUES)
        return self._repeatable(path, ways, outcomes[0])

    def _real_runs(self, module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]], error: Exception) -> Runs:
        # Of a module that does not run on fake tensors, such as one with packed sequences.
        try:
            with outside_tracing():
                return returning_runs(real_copy(module), spec, given, real=True)
        except Exception:
            raise error from None

    def _repeatable(self, path: str, ways: Runs, cautious: CallOutcome) -> CallOutcome:
        # If all ways were tried, it is known which arguments a call reads, and readers may repeat it.
        outcomes = [self._outcome(path, *each) for each in ways]
        if not outcomes or any(not each.repeatable or _cautious(each) != cautious for each in outcomes):
            return cautious
        unread = [position for position in outcomes[0].unread if all(position in each.unread for each in outcomes)]
        return replace(cautious, unread=tuple(unread), repeatable=True)

    def _outcome(self, path: str, few: StaticRun, many: StaticRun) -> CallOutcome:
        low, high = _by_any_formula(few.operators), _by_any_formula(many.operators)
        alike = set(low) == set(high) if few.split else low == high
        if not alike and not _loops_over_samples(Counter(low), Counter(high)):
            raise OtherOperators(f"'{path}' runs other operators for {SAMPLES[0]} samples than for {SAMPLES[1]}")
        if few.spec != many.spec or few.written != many.written or len(few.tensors) != len(many.tensors):
            raise CannotExpress(path, "returns something else for another number of samples")
        try:
            forms = iter([Form.of(one, other) for one, other in zip(few.tensors, many.tensors, strict=True)])
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
            statistic=many.statistic,
            changed=tuple(f"{path}.{name}" for name in few.changed),
        )


def _by_any_formula(operators: list[Any]) -> list[object]:
    # torch.cdist computes distances from more than 25 points as products of matrices, which takes views besides.
    if _DISTANCES.isdisjoint(operators):
        return operators
    return [torch.cdist if each in _DISTANCES else each for each in operators if not is_view(each)]


def _loops_over_samples(few: Counter[object], many: Counter[object]) -> bool:
    # Whether every operator runs equally often for each sample, besides those that run once for all of them.
    low, high = SAMPLES
    each = {operator: divmod(many[operator] - few[operator], high - low) for operator in few.keys() | many.keys()}
    return all(not rest and 0 <= count * low <= few[operator] for operator, (count, rest) in each.items())


def _cautious(found: CallOutcome) -> CallOutcome:
    return replace(found, unread=(), repeatable=False, beside=frozenset[int]())


def _no_more_than(found: CallOutcome, in_training: CallOutcome) -> CallOutcome:
    # In evaluation glue must be the same. A layer that asks for values only in training may read any argument there.
    unread = tuple(position for position in found.unread if position in in_training.unread)
    return replace(found, unread=unread, beside=found.beside & in_training.beside)


def _at(leaf: Any, samples: int) -> Any:
    if isinstance(leaf, Tensor):
        shape, strides = (tuple(size_at(size, samples) for size in sizes) for sizes in (leaf.shape, leaf.stride()))
        return BlankArgument(shape, strides, leaf.dtype)
    if isinstance(leaf, torch.SymBool):
        return TRUTH
    return size_at(leaf, samples) if isinstance(leaf, torch.SymInt) else leaf


def _key(leaf: Any) -> object:
    plain = isinstance(leaf, BlankArgument | bool | int | float | str | torch.dtype | torch.device | type(None))
    return (type(leaf), leaf) if plain else id(leaf)
