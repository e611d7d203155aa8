"""What is checked: a model with its loss, some samples, and the plan for them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.module_graph.exported_graph import call_arguments
from graphpipe.model.inputs import with_containers
from graphpipe.model.inputs.input_forms import taking
from graphpipe.plans import Plan
from graphpipe.run.device.fixed_draws import doubled
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.tensor_tree import map_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSubject:
    """A model with its loss, some samples, and the plan for them."""

    plan: Plan
    """For the number of the samples."""
    model: nn.Module
    loss_fn: LossFunction
    inputs: Mapping[str, Tensor]
    """With samples in front, by name."""
    targets: Any
    captured: Captured | None
    """What the plan was made from; None: the model is captured again."""
    double: bool = True
    """Whether the step is computed in double precision."""
    seed: int = 0
    """Of all random generators, where the step begins."""
    watched: bool = False
    """Whether to record what every submodule returns."""
    shaken: bool = False
    """Whether the plain step begins with weights that differ by their rounding."""
    again: bool = False
    """Whether the step is a second one, which begins with the weights and buffers that the first one had."""

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the loss if it is a module."""
        return [self.model, *([self.loss_fn] if isinstance(self.loss_fn, nn.Module) else [])]

    @property
    def tensors(self) -> list[Tensor]:
        """The other tensors that the loss holds, which are computed with in the precision of the step."""
        return [each for _, each in held_tensors(self.loss_fn) if each.is_leaf]

    @property
    def origin(self) -> Origin:
        """How the model was captured."""
        return self.plan.graph.origin or Origin(method="auto")

    def in_precision(self) -> "CheckSubject":
        """Return the same with inputs and targets in the precision of the step."""
        if not self.double:
            return self
        inputs = {name: _double(each) for name, each in self.inputs.items()}
        return replace(self, inputs=inputs, targets=map_tensors(self.targets, _double))

    def of_rows(self, rows: Sequence[int]) -> "CheckSubject":
        """Return the same with these of its samples."""
        at = [*rows]
        inputs = {name: each[at] for name, each in self.inputs.items()}
        return replace(self, inputs=inputs, targets=map_tensors(self.targets, lambda each: each[at]))

    def forward(self) -> Any:
        """Return what the model itself computes, as far as the plan's graph returns it."""
        origin, layout = self.origin, self.plan.graph.input_layout
        model = self.model
        if origin.forms:
            call: Any = taking(model.__call__, dict(origin.forms), layout.names)
        else:
            call = model
        call = partial(call, **dict(origin.arguments))
        given = with_containers(layout, self.inputs)
        args, kwargs = call_arguments(model, given)
        output = call(*args, **kwargs)
        if not origin.outputs:
            return output
        return {name: output[name] if isinstance(output, Mapping) else getattr(output, name) for name in origin.outputs}


def _double(tensor: Tensor) -> Tensor:
    return tensor.to(doubled(tensor.dtype))


def labels(loss_fn: object) -> dict[int, str]:
    """Return the tensors that a loss function holds, by their ids: how to name each of them."""
    return {id(tensor): name for name, tensor in held_tensors(loss_fn)}


def held_tensors(loss_fn: object) -> list[tuple[str, Tensor]]:
    """Return the tensors that a loss function holds, with their names: of its module, closure or arguments."""
    return list(_held(loss_fn, _DEPTH))


_DEPTH = 3
"""How many objects inside each other are looked into for tensors."""


def _held(value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield "", value
    elif isinstance(value, nn.Module):
        yield from value.named_parameters()
    elif depth and not isinstance(value, ModuleType | type) and not _is_torch(value):
        for name, part in _parts(value):
            for inner, tensor in _held(part, depth - 1):
                yield ".".join(each for each in (name, inner) if each), tensor


def _is_torch(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("torch", "numpy")


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, partial):
        yield "", value.func
        yield from ((str(n), each) for n, each in enumerate(value.args))
        yield from value.keywords.items()
    elif inspect.ismethod(value):
        yield "", value.__self__
    elif inspect.isfunction(value):
        found = inspect.getclosurevars(value)
        yield from (*found.nonlocals.items(), *found.globals.items())
    elif isinstance(value, list | tuple):
        yield from ((str(n), each) for n, each in enumerate(value))
    elif isinstance(value, dict):
        yield from ((str(key), each) for key, each in value.items())
    elif hasattr(value, "__dict__"):
        yield from [*vars(value).items()]


def seed_all(number: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    import random

    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
