"""What operators keep for their backward, or for its second half, as autograd tells it when they run, compiled or not.

    a makes u   ->   b saves u, makes v and saves w inside   ->   c saves v
    a keeps u        b keeps w and v                              c keeps nothing

Each piece of memory counts once: for the operator that makes the value in it, or else for the one that saves it. A
graph counts so what eager operators save. Parameters, buffers and inputs of the model do not count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from weakref import WeakSet

import torch
from pydantic import ConfigDict
from torch import Tensor, nn

from graphpipe.costs import SavedBytes
from graphpipe.model.saved_tensors import SavedTensor, handle_saved_tensors
from graphpipe.model.torch_private import memory_key
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.saved.op_pass import OpPass, may_release

Forward = Callable[[dict[str, Tensor]], Sequence[Tensor]]
"""Takes inputs by name, and returns the values that others read, in the order of their names, and then others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValues:
    """What one operator keeps for a later task, at some numbers of samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    inside: Mapping[int, float] = field(default_factory=dict[int, float])
    """Bytes, by samples, of the memory that is neither of its inputs nor of the values that others read of it."""
    made: Mapping[str, Mapping[int, float]] = field(default_factory=dict[str, Mapping[int, float]])
    """Bytes, by samples, of the memory of each value that others read of it and that lies in no other value."""
    within: Mapping[str, str] = field(default_factory=dict[str, str])
    """The value, read or made, in whose memory a value that others read of it lies."""
    saves: frozenset[str] = frozenset()
    """Values, read or made, that it keeps."""

    def joined(self, other: "SavedValues") -> "SavedValues":
        """Return these and those of the same operator at other numbers of samples."""
        names = dict.fromkeys([*self.made, *other.made])
        return SavedValues(
            op=self.op,
            inside={**self.inside, **other.inside},
            made={name: {**self.made.get(name, {}), **other.made.get(name, {})} for name in names},
            within={**self.within, **other.within},
            saves=self.saves | other.saves,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptValues:
    """What one operator keeps, as it was measured."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    saved: SavedValues
    """For its backward."""
    between_halves: SavedValues
    """Between the two halves of a split backward, with the gradients that those of parameters wait with."""

    @property
    def op(self) -> str:
        """The name of the operator."""
        return self.between_halves.op


@dataclass(slots=True)
class _Saved:
    # Of these, what a graph still refers to when the forward has ended is kept.
    seen: WeakSet[SavedTensor] = field(default_factory=WeakSet[SavedTensor])

    def on_save(self, saved: SavedTensor) -> None:
        self.seen.add(saved)

    def on_read(self, saved: SavedTensor) -> None:
        """Do nothing: all that was saved is there."""


def saved_values(
    op: str, forward: Forward, module: nn.Module | None, sends: Sequence[str], given: Mapping[str, Tensor], samples: int
) -> SavedValues:
    """Return what an operator saves for its backward at one number of samples.

    Args:
        op: its name.
        forward: runs it.
        module: has the parameters and buffers that it uses.
        sends: the names of the values that others read.
        given: its inputs by name.
        samples: their number.
    """
    noted = _Saved()
    with handle_saved_tensors(noted):
        outputs = forward(dict(given))
    return _values(op, noted, module, dict(zip(sends, outputs, strict=False)), given, samples)


def values_between_halves(run: OpRun, samples: int) -> SavedValues:
    """Return what an operator keeps between the two halves of a split backward at one number of samples."""
    tried, noted = OpPass.of(run, samples, releases=may_release(run, samples)), _Saved()
    with handle_saved_tensors(noted):
        outputs = tried.forward()
    tried.seed()
    tried.input_half()
    # Outputs are held until here, so that no gradient lies where one of them was.
    sent = dict(zip(run.sends, outputs, strict=False))
    return _values(run.op, noted, run.module, sent, tried.given, samples, tried.half.waiting)


def _values(
    op: str,
    noted: _Saved,
    module: nn.Module | None,
    sent: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    samples: int,
    others: Sequence[Tensor] = (),
) -> SavedValues:
    state = [] if module is None else [*module.parameters(), *module.buffers()]
    homes = {**dict.fromkeys(map(memory_key, state), ""), **{memory_key(each): name for name, each in given.items()}}
    made, within = dict[str, Mapping[int, float]](), dict[str, str]()
    for name, tensor in sent.items():
        if (home := homes.setdefault(memory_key(tensor), name)) == name:
            made[name] = {samples: float(_bytes(tensor))}
        elif home:
            within[name] = home
    saved = [each.tensor for each in noted.seen if each.tensor is not None]
    kept = {memory_key(tensor): tensor for tensor in (*saved, *others)}
    return SavedValues(
        op=op,
        inside={samples: float(sum(_bytes(tensor) for key, tensor in kept.items() if key not in homes))},
        made=made,
        within=within,
        saves=frozenset(home for key in kept if (home := homes.get(key))),
    )


def saved_by_op(found: Iterable[SavedValues]) -> dict[str, SavedBytes]:
    """Return what each operator keeps, given what all operators of a model keep."""
    found = [*found]
    within = {name: home for each in found for name, home in each.within.items()}
    saved = {_home(name, within) for each in found for name in each.saves}
    kept: dict[str, SavedBytes] = {}
    for each in found:
        own = [sizes for name, sizes in each.made.items() if name in saved]
        totals = {
            samples: count + sum(sizes.get(samples, 0.0) for sizes in own) for samples, count in each.inside.items()
        }
        kept[each.op] = _line(totals)
    return kept


def _home(name: str, within: Mapping[str, str]) -> str:
    while name in within:
        name = within[name]
    return name


def _line(totals: Mapping[int, float]) -> SavedBytes:
    # The steepest line between two sizes, so that it is below nothing that was measured.
    points = sorted(totals.items())
    if len(points) < 2:
        return SavedBytes(per_sample=sum(count / samples for samples, count in points))
    slope = max(0.0, *((more - less) / (last - first) for (first, less), (last, more) in pairwise(points)))
    return SavedBytes(
        per_sample=slope, per_forward=max(0.0, *(round(count - slope * samples, 3) for samples, count in points))
    )


def _bytes(tensor: Tensor) -> int:
    strided = tensor.layout is torch.strided
    return tensor.untyped_storage().nbytes() if strided else tensor.numel() * tensor.element_size()
