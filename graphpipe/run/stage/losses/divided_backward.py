"""Whether the backward of a stage gives the same gradients for some samples alone as among others.

A backward that is written by hand may mix samples that the forward does not mix: it divides gradients by their norm,
for example. Gradients of all samples together must be the sums of those of their parts, for the same gradients of what
the stage sends on.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.run.stage.injected_gradients import check_no_injection
from graphpipe.run.stage.losses.fixed_gradient import fixed_gradient, small_ones
from graphpipe.run.stage.losses.parts_of_samples import (
    STAYS,
    Parts,
    Samples,
    is_low,
    left_over,
    results,
    tolerance,
)
from graphpipe.run.stage.losses.undisturbed import as_before, doubled, in_double, undisturbed
from graphpipe.run.stage.tensor_tree import leaves

_CANCELLED = 1e-5
"""Relative to the largest gradient of all: a gradient may be a sum of terms that cancel."""
NamedTensors = dict[str, Tensor]
_Probe = Callable[[Sequence[Tensor], Mapping[str, Tensor], Mapping[str, Tensor]], None]


def check_divided_backward(
    program: ModuleStage,
    several: Sequence[Parts],
    stage: str,
    without: Collection[str],
    *,
    outputs: bool,
) -> None:
    """Check that the gradients of some samples follow from those of their parts. Nothing is kept.

    Args:
        program: of a stage.
        several: samples, few of them first. The first that the stage runs on are compared.
        stage: its name.
        without: what it sends on, and what gets no gradient.
        outputs: whether the model's outputs get gradients. The loss itself is not computed.

    Raises:
        InvalidInput: they do not, or the backward adds gradients of its own.
    """
    low = any(is_low(each) for each in program.module.parameters())
    for parts in several:
        run = _Backward(program, parts, frozenset(without), outputs)
        first = run.differences(double=low)
        if first is not None:
            break
    else:
        return
    if not first:
        return
    found = first if low else run.differences(double=True)
    if found is None:
        return
    names = [name for name, size in found.items() if name in first and size >= STAYS * first[name]]
    if not names:
        return
    run.probe(partial(_check_no_injection, stage=stage))
    raise InvalidInput(
        f"the gradient of '{names[0]}' is another one if samples are divided into micro-batches: a backward mixes the "
        "samples of a batch",
        where=f"stage '{stage}'",
        remedy="Give the submodule with that backward the whole mini-batch (whole_batch=[...]).",
    )


def _check_no_injection(
    roots: Sequence[Tensor], received: Mapping[str, Tensor], trained: Mapping[str, Tensor], stage: str
) -> None:
    check_no_injection(roots, received, trained=trained, stage=stage)


@dataclass(frozen=True, slots=True)
class _Backward:
    program: ModuleStage
    parts: Parts
    without: frozenset[str]
    outputs: bool

    def differences(self, *, double: bool) -> dict[str, float] | None:
        """Return how far apart gradients are, where it is more than rounding; None if the stage does not run."""
        parts = self.parts.changed(doubled) if double else self.parts
        one, other = parts.halves
        try:
            with undisturbed(parts.device, double=double), torch.enable_grad():
                call, trained = self._called(double=double)
                run = partial(self._gradients, call=call, trained=trained)
                found = _apart(run(parts.whole, 0), [(0, one), (one.rows, other)], run, trained)
                if found and _apart(run(parts.whole, 0), [(0, parts.whole)], run, trained):
                    return None  # it draws random numbers that are not torch's
        except Exception:  # it may not have a second backward, or no double precision
            return None
        names = self.program.parameter_names
        return {names.get(name, name): size for name, size in found.items()}

    def probe(self, probe: _Probe) -> None:
        """Call a function with the ends of a backward, what is received, and the trained parameters."""
        with undisturbed(self.parts.device), torch.enable_grad():
            _, trained = self._called(double=False)
            self._gradients(self.parts.whole, 0, call=None, trained=trained, probe=probe)

    def _called(self, *, double: bool) -> tuple[Callable[..., Any] | None, NamedTensors]:
        if double:
            call, trained = in_double(self.program.module)
            return call, small_ones(trained)
        named = self.program.module.named_parameters()
        return None, small_ones({name: each for name, each in named if each.requires_grad})

    def _gradients(
        self,
        part: Samples,
        start: int,
        *,
        call: Callable[..., Any] | None,
        trained: NamedTensors,
        probe: _Probe | None = None,
    ) -> NamedTensors:
        program = self.program
        needing = {spec.name for specs in program.receives.values() for spec in specs if spec.requires_grad}
        values = {name: value.detach().clone() for name, value in part.values.items()}
        received = {name: values[name].requires_grad_() for name in values.keys() & needing}
        # A forward may write into what it gets, which a leaf does not allow.
        given = {name: value.clone() if name in received else value for name, value in values.items()}
        with as_before(program.module):
            sent, result = results(program, given, call)
            ends = {name: value for name, value in sent.items() if value.requires_grad and name not in self.without}
            roots = [*ends.values()]
            if self.outputs:
                rows = [each for each in leaves(result) if each.requires_grad and each.dim()]
                roots += [each for each in rows if len(each) == part.rows]
            wanted = {**trained, **received}
            if not roots or not wanted:
                return {}
            if probe is not None:
                probe(roots, received, {program.parameter_names[name]: each for name, each in trained.items()})
            gradients = [fixed_gradient(value, start) for value in roots]
            made = torch.autograd.grad(roots, [*wanted.values()], gradients, allow_unused=True)
        found = cast("Sequence[Tensor | None]", made)
        # Some gradients are views of one tensor, or expanded.
        return {
            name: each.to_dense() if each.is_sparse else each.clone()
            for name, each in zip(wanted, found, strict=True)
            if each is not None
        }


def _apart(
    whole: NamedTensors,
    parts: Sequence[tuple[int, Samples]],
    gradients: Callable[[Samples, int], NamedTensors],
    trained: Collection[str],
) -> dict[str, float]:
    # How far whole gradients are from what follows from those of parts, where it is more than rounding. What is left of
    # the whole gradients stands in their place, because gradients may be large.
    largest = max((tolerance(each, share=1.0) for each in whole.values()), default=0.0)
    allowed = {name: tolerance(each) for name, each in whole.items()}
    for start, part in parts:
        for name, gradient in gradients(part, start).items():
            if name not in whole:
                rows = sum(each.rows for _, each in parts)
                whole[name] = gradient.new_zeros(gradient.shape if name in trained else (rows, *gradient.shape[1:]))
            allowed[name] = max(allowed.get(name, 0.0), tolerance(gradient))
            left = whole[name] if name in trained else whole[name][start : start + part.rows]
            left -= gradient
    sizes = {name: left_over(left) for name, left in whole.items()}
    return {name: size for name, size in sizes.items() if size > max(allowed[name], _CANCELLED * largest)}
