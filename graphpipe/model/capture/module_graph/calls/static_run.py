"""One run of an opaque submodule on fake tensors, with a plain number of samples."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.data_flow import MIXED, DataFlow, Decisions, Step
from graphpipe.model.capture.module_graph.calls.weight_writes import WeightsBefore
from graphpipe.model.capture.work.recurrence import recurrent_layers_at_a_glance
from graphpipe.model.hidden.library_draws import library_draws_fixed
from graphpipe.model.hidden.real_call import real_ones
from graphpipe.model.hidden.result_types import flatten_open
from graphpipe.model.kept_attributes import attributes_kept
from graphpipe.model.torch_private import TreeSpec, answering, call_directly, non_leaf_alias, unflatten


@dataclass(frozen=True, slots=True)
class BlankArgument:
    """A tensor argument for one number of samples."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """Return it without data."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")

    def ones(self) -> Tensor:
        """Return it with ones, as training gives it: the forward may ask for a gradient of its own."""
        made = real_ones(self.shape, self.strides, self.dtype)
        return non_leaf_alias(made.requires_grad_()) if made.is_floating_point() else made


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRun:
    """What one run returned, and how it treated its tensor arguments, which are named by their position."""

    leaves: list[Any]
    """Of the result."""
    operators: list[object]
    """That ran, in order."""
    spec: TreeSpec
    """The containers of the result."""
    tensors: list[Tensor]
    """The tensors among the leaves, then the arguments that it wrote into."""
    written: tuple[int, ...]
    """The arguments that it wrote into."""
    unread: tuple[int, ...]
    """The arguments whose values it did not read."""
    repeatable: bool
    """Whether it has no parameters, drew no random numbers and wrote into nothing."""
    passed: Mapping[int, int]
    """The leaves that are arguments."""
    cheap: tuple[int, ...]
    """Leaves that are not arguments, and that are computed without much work. Empty if the call writes anywhere."""
    decided: bool
    """Whether it branched on a truth value in a tensor."""
    split: bool
    """Whether it split a tensor by sizes in another tensor, and so may have run a loop over the parts."""
    changed: tuple[str, ...]
    """The module's parameters that it wrote into or replaced."""
    buffers: tuple[str, ...]
    """The module's buffers that it wrote into or replaced."""
    read: Sequence[Tensor]
    """The tensors that it read, besides its arguments and what it made itself."""
    steps: Sequence[Step]
    statistic: str
    """The operator that mixes samples, if a result or a branch depends on it. Empty without a run with fewer."""


def static_run(
    module: nn.Module,
    spec: TreeSpec,
    leaves: Sequence[Any],
    decisions: Decisions,
    like: Sequence[Step] = (),
    *,
    real: bool = False,
) -> StaticRun:
    """Run a module once.

    Args:
        module: an opaque submodule.
        spec: the containers of its arguments: (args, kwargs).
        leaves: of its arguments.
        decisions: that answer its questions for truth values in tensors.
        like: the steps of its run with another number of samples.
        real: run on ones, with a module that has real weights.

    Raises:
        Exception: the module's error.
    """
    copies: list[Tensor] = []
    arguments: list[Any] = []
    for leaf in leaves:
        arguments.append(
            (leaf.ones() if real else leaf.tensor()) if isinstance(leaf, BlankArgument) else decisions.known(leaf)
        )
        copies += [arguments[-1]] * isinstance(leaf, BlankArgument)
    args, kwargs = unflatten(arguments, spec)
    weights, buffers = WeightsBefore(module.named_parameters), WeightsBefore(module.named_buffers)
    layers = nullcontext() if real else recurrent_layers_at_a_glance()
    with (
        DataFlow(copies, decisions, like) as flow,
        layers,
        answering(decisions.decide),
        attributes_kept(module),
        library_draws_fixed(),
    ):
        found, returned = flatten_open(call_directly(module, *args, **kwargs))
        kept = buffers.changed(flow.wrote_into)
    tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
    returned_tensors = [*tensors]
    written = tuple(position for position, copy in enumerate(copies) if flow.wrote_into(copy))
    tensors += [copies[position] for position in written]
    read = flow.sources(tensors) | flow.numbers
    passed = {at: position for at, leaf in enumerate(found) for position, copy in enumerate(copies) if leaf is copy}
    return StaticRun(
        leaves=found,
        operators=[] if real else flow.operators,  # a scripted module may compile others after its first call
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
        split=decisions.split,
        changed=weights.changed(flow.wrote_into),
        buffers=kept,
        read=flow.read,
        steps=flow.steps,
        statistic=flow.mixing if MIXED in flow.sources(returned_tensors) | flow.numbers else "",
    )
