"""A mini-batch. A rank has all of it, or its share, and takes the rows that its stages need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.given_order import GivenOrder
from graphpipe.run.stage.losses.lists_of_samples import check_no_list_of_samples
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.stage.tensor_tree import leaves, map_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """Inputs by name, targets (a tree of tensors), and the settings of the step."""

    inputs: Mapping[str, Tensor]
    targets: Any
    size: int
    """Number of samples of the whole mini-batch."""
    micro_batches: tuple[int, ...]
    """Samples of one micro-batch, by stage."""
    key: tuple[int, ...]
    """The seed and the step, from which random numbers are derived together with the task."""
    training: bool
    """Whether something is kept for a backward; False for an evaluation."""
    specs: EdgeSpecs
    """The values on every stage edge, for inputs of these shapes."""
    check_finite: bool
    """Whether every stage checks its outputs for NaN and infinity."""
    loss_scale: float = 1.0
    """The factor by which the loss is multiplied for the backward."""
    keeps_outputs: bool = False
    """Whether an evaluation keeps the model's outputs."""
    needs: Needs | None = None
    """The rows that inputs and targets hold. None: all of them."""
    samples: Sequence[int] = ()
    """What identifies each sample of the mini-batch, if this rank was given its share."""
    with_targets: bool = True
    """Whether there are targets, on this rank or another one."""
    given_order: GivenOrder | None = None
    """How the samples were given, if they were put into another order."""

    @property
    def as_given(self) -> "MiniBatch":
        """The mini-batch with inputs and targets in the order in which they were given."""
        if self.given_order is None:
            return self
        return replace(self, inputs=self.given_order.inputs, targets=self.given_order.targets, given_order=None)

    @property
    def step(self) -> int:
        """The number of the step, from 1."""
        return self.key[-1] + 1

    @property
    def weighs_apart(self) -> bool:
        """Whether the weights of a loss are summed after the losses, because this rank does not have all targets.

        In an evaluation of shares they always are, so that the losses of several mini-batches can be averaged.
        """
        return self.needs is not None and not (self.training and len(self.needs.targets) == self.size)

    def input_rows(self, names: Sequence[str], rows: SampleRange, device: torch.device) -> dict[str, Tensor]:
        """Return the given samples of the named inputs on `device`."""
        if (needs := self.needs) is not None:
            return {name: _cut(self.inputs[name], needs.held(rows, needs.inputs[name]), device) for name in names}
        return {name: _cut(self.inputs[name], rows, device) for name in names}

    def target_rows(self, rows: SampleRange, device: torch.device) -> Any:
        """Return the given samples of the targets on `device`."""
        if self.needs is not None:
            rows = self.needs.held(rows, self.needs.targets)
        if isinstance(self.targets, Tensor):  # The usual case, without the cost of a tree.
            return _cut(self.targets, rows, device)
        return map_tensors(self.targets, lambda tensor: _cut(tensor, rows, device))


def _cut(tensor: Tensor, rows: SampleRange, device: torch.device) -> Tensor:
    part = tensor.narrow(0, rows.start, len(rows))
    return part if part.device == device else part.to(device, non_blocking=True)


class SeenValues:
    """A digest of the values of all mini-batches so far: of the whole first one, then of two samples of each.

    The two samples rotate, so that values which differ in one place are seen after half as many mini-batches as there
    are samples in each. A digest of all values would cost more than the step of a small model. Of shares it is a digest
    of the numbers of all samples, since no two ranks need to have the same values.
    """

    def __init__(self) -> None:
        self._state = blake2b(digest_size=4)
        self._count = 0

    @staticmethod
    def of(batch: MiniBatch) -> "SeenValues":
        """Return the digest of one mini-batch."""
        seen = SeenValues()
        seen.add(batch)
        return seen

    def add(self, batch: MiniBatch) -> None:
        """Add the values of the next mini-batch."""
        if batch.needs is not None:
            self._state.update(np.asarray(batch.samples, dtype="<i8").tobytes())
            self._count += 1
            return
        first = 2 * (self._count - 1) % batch.size
        rows = slice(first, first + 2) if self._count else slice(None)
        for tensor in [*batch.inputs.values(), *leaves(batch.targets)]:
            values = tensor[rows].detach().cpu().contiguous().reshape(-1)
            self._state.update(values.view(torch.uint8).numpy().data)
        self._count += 1

    @property
    def count(self) -> int:
        """How many mini-batches were added."""
        return self._count

    @property
    def digits(self) -> str:
        """8 hexadecimal digits."""
        return self._state.hexdigest()


def check_rows(inputs: Mapping[str, Tensor], targets: object) -> int:
    """Return the number of samples in a mini-batch.

    Raises:
        InvalidInput: there are no inputs, a tensor has no dimension of samples, the numbers of samples differ, or a
            target has values of samples that are not tensors.
    """
    if not inputs:
        raise InvalidInput("the mini-batch has no inputs", where="inputs")
    given = leaves(targets)
    size = first.shape[0] if (first := next(iter(inputs.values()))).ndim else 0
    if size and all(tensor.ndim and tensor.shape[0] == size for tensor in (*inputs.values(), *given)):
        check_no_list_of_samples(targets, size)
        return size
    _refuse_rows(inputs, given)


def check_alike(batch: MiniBatch, first: MiniBatch) -> None:
    """Check that the inputs of a mini-batch have the shapes and dtypes of those of another one.

    Raises:
        InvalidInput: they differ.
    """
    for name, given in batch.inputs.items():
        like = first.inputs[name]
        if given.shape != like.shape or given.dtype != like.dtype:
            raise InvalidInput(
                f"is {given.dtype}{[*given.shape]}, in the first mini-batch of the segment it is "
                f"{like.dtype}{[*like.shape]}",
                where=f"input '{name}', mini-batch {batch.step - first.step} of the segment",
                remedy="Pad the samples, or begin a new segment.",
            )


def _refuse_rows(inputs: Mapping[str, Tensor], targets: Sequence[Tensor]) -> NoReturn:
    sizes = {f"input '{name}'": tensor for name, tensor in inputs.items()}
    sizes |= {f"target {number}": tensor for number, tensor in enumerate(targets)}
    first, samples = next(iter(sizes.items()))
    size = samples.shape[0] if samples.ndim else 0
    name, wrong = next(
        (name, each) for name, each in sizes.items() if not each.ndim or each.shape[0] != size or not size
    )
    if not wrong.ndim:
        what = f"{name} is a single number"
    elif name == first:
        what = f"{name} holds no sample"
    else:
        what = f"{name} holds {wrong.shape[0]} samples, {first} holds {size}"
    remedy = "The first dimension of every input and target is the samples of the mini-batch."
    if not wrong.ndim and name not in list(sizes)[: len(inputs)]:
        remedy += " A target that is one number for all samples may be a plain number: float(target)."
    raise InvalidInput(what, where="mini-batch", remedy=remedy)
