"""The differences between a plain step and a step of a pipeline, beyond what rounding explains."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphpipe.equivalence.deviation import Deviation, Kind
from graphpipe.equivalence.steps.relative_difference import (
    DOUBLE,
    SINGLE,
    distance,
    is_single,
    largest_of,
    relative_difference,
)
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.graph import Graph, ParameterSlice, parameter_of
from graphpipe.model.split.submodules import sliced

NOISE = 20.0
"""A difference counts only if it is so many times larger than what changing all weights by their rounding makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far apart two plain steps are whose weights differ by rounding."""

    first: StepRecord
    second: StepRecord

    def of(self, group: str, name: str) -> float:
        """Return the largest difference of one tensor."""
        one, other = getattr(self.first, group).get(name), getattr(self.second, group).get(name)
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
            return 0.0
        return distance(one, other) if one.is_floating_point() else 0.0

    @property
    def of_loss(self) -> float:
        """The difference of the loss."""
        return abs(self.first.loss - self.second.loss)


def differences(
    plain: StepRecord, cut: StepRecord, graph: Graph, ignored: Iterable[str] = (), noise: Noise | None = None
) -> tuple[Deviation, ...]:
    """Return what differs: outputs, the loss, then gradients, parameters and buffers in the order of the forward.

    Args:
        plain: the step in plain PyTorch.
        cut: the step of a pipeline.
        graph: of the model.
        ignored: buffers that are not compared.
        noise: of the plain step. None: rounding is taken to be that of an ordinary model.
    """
    found = _outputs(plain, cut, noise)
    order, owners = _order(graph)
    found += sorted(
        [*_gradients(plain, cut, owners, noise), *_changes(plain, cut, owners, {*ignored}, noise)],
        key=lambda each: order.get(each.name, len(order)),
    )
    return (*found, *_others(plain, cut, noise))


def _order(graph: Graph) -> tuple[dict[str, int], dict[str, str]]:
    # The place of every parameter in the forward, and the first operator that has it.
    owners: dict[str, str] = {}
    for op in graph.order:
        for name in graph[op].parameters:
            owners.setdefault(parameter_of(name), op)
    return {name: n for n, name in enumerate(owners)}, owners


def _outputs(plain: StepRecord, cut: StepRecord, noise: Noise | None) -> list[Deviation]:
    found: list[Deviation] = []
    for name in plain.outputs.keys() & cut.outputs.keys():
        allowed = NOISE * noise.of("outputs", name) if noise else 0.0
        size = relative_difference(plain.outputs[name], cut.outputs[name], 0.0, allowed)
        if size:
            found.append(Deviation(kind="output", name=name, relative=size))
    scale, away = abs(plain.loss), abs(plain.loss - cut.loss)
    single = is_single([each for each in plain.gradients.values() if each is not None])
    allowed = max((SINGLE if single else DOUBLE) * max(scale, 1e-3), NOISE * noise.of_loss if noise else 0.0)
    if not away <= allowed:
        found.append(Deviation(kind="loss", relative=away / scale if scale else away))
    return found


def _others(plain: StepRecord, cut: StepRecord, noise: Noise | None) -> Iterable[Deviation]:
    for name, expected in plain.others.items():
        found = cut.others.get(name)
        if expected is None:
            continue
        if found is None:
            yield Deviation(kind="untrained", name=name)
        elif size := relative_difference(expected, found, 0.0, NOISE * noise.of("others", name) if noise else 0.0):
            yield Deviation(kind="gradient", name=name, relative=size)


def _gradients(
    plain: StepRecord, cut: StepRecord, owners: Mapping[str, str], noise: Noise | None
) -> Iterable[Deviation]:
    whole = _whole(cut.gradients, plain.gradients)
    largest = max((largest_of(each) for each in plain.gradients.values() if each is not None), default=0.0)
    for name, expected in plain.gradients.items():
        operator = owners.get(name, "")
        if name not in whole:
            if expected is not None:
                yield Deviation(kind="missing", name=name)
            continue
        found = whole[name]
        if expected is None or found is None:
            if expected is not None and largest_of(expected):
                yield Deviation(kind="zero", name=name, operator=operator, relative=1.0)
            elif expected is not found:
                yield Deviation(kind="zero" if found is None else "none", name=name, operator=operator)
            continue
        allowed = NOISE * noise.of("gradients", name) if noise else 0.0
        size = relative_difference(expected, found, largest, allowed)
        if size:
            yield Deviation(kind="gradient", name=name, operator=operator, relative=size)


def _whole(found: Mapping[str, Tensor | None], plain: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    # Stages train slices of split layers. The slices of one parameter are put together.
    whole: dict[str, Tensor | None] = {}
    for name, gradient in found.items():
        piece, like = ParameterSlice.parse(name), plain.get(parameter_of(name))
        if piece is None or gradient is None or like is None:
            whole.setdefault(parameter_of(name), gradient)
            continue
        held = whole.get(piece.parameter)
        made = torch.full_like(like, torch.nan) if held is None else held
        sliced(made, piece).copy_(gradient)
        whole[piece.parameter] = made
    return whole


def _changes(
    plain: StepRecord, cut: StepRecord, owners: Mapping[str, str], ignored: set[str], noise: Noise | None
) -> Iterable[Deviation]:
    pairs: tuple[tuple[Kind, str], ...] = (("parameter", "parameters"), ("buffer", "buffers"))
    for kind, group in pairs:
        one: Mapping[str, Tensor] = getattr(plain, group)
        other: Mapping[str, Tensor] = getattr(cut, group)
        for name in sorted((one.keys() | other.keys()) - ignored):
            if ParameterSlice.parse(name):
                continue
            size = 1.0  # changed only in one of them
            if name in one and name in other:
                allowed = NOISE * noise.of(group, name) if noise else 0.0
                size = relative_difference(_last_rows(one[name], other[name]), other[name], 0.0, allowed)
            if size:
                yield Deviation(kind=kind, name=name, operator=owners.get(name, ""), relative=size)


def _last_rows(whole: Tensor, part: Tensor) -> Tensor:
    """Return the last rows of a tensor that has more of them than another one, else the tensor.

    A buffer that holds a value for each sample, such as a membrane potential, ends with those of the last micro-batch.
    """
    alike = whole.dim() == part.dim() > 0 and whole.shape[1:] == part.shape[1:]
    return whole[-len(part) :] if alike and 0 < len(part) < len(whole) else whole
