"""Stage programs and the values on their edges, by the shapes of the inputs; built on first use, then kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.model.autocast import DTYPES
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.inputs import describe
from graphpipe.model.lengths.programs_by_length import ProgramsByLength
from graphpipe.model.split.autocast_specs import autocast_specs
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split import capture_for, split, submodules_for
from graphpipe.model.split.split_for_shapes import OperatorNodes, operator_nodes, split_for_shapes
from graphpipe.model.split.submodules import Submodules
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.stage.edge_values import EdgeSpecs, edge_specs

Inputs = tuple[Input, ...]
_Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
"""Name, shape of a sample and dtype of every input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedPrograms:
    """A split model for inputs of certain shapes."""

    inputs: Inputs
    programs: tuple[StageProgram, ...]
    """The program of each stage."""
    specs: EdgeSpecs


class ProgramsByShape:
    """The splits of a model by a plan.

    Args:
        plan: says where to cut.
        model: the user's, from which programs for any shapes can be made; or stage programs, which must send the same
            shapes for all inputs, in the dtypes that they name.
        precision: of the forwards.
        device: where they run.
        captured: the model as it was captured for the plan, if it is at hand.
        share: puts the parts of this rank in place of submodules that several ranks share.

    Raises:
        InvalidInput: the model does not fit the plan.
    """

    first: ShapedPrograms
    """The split for the inputs that the plan was made with."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module | Sequence[StageProgram],
        precision: str,
        device: torch.device,
        captured: Captured | None = None,
        share: Callable[[Submodules], None] | None = None,
    ) -> None:
        self._captured = captured
        self._plan, self._precision, self._device = plan, precision, device
        self._model = model if isinstance(model, nn.Module) else None
        self._groups: OperatorNodes | None = None
        if isinstance(model, nn.Module):
            self._submodules = submodules_for(model, plan.graph)
            if share is not None:
                share(self._submodules)
            self._planned = split(model, plan, captured, self._submodules)
            self._lengths = ProgramsByLength(partial(self._capture, model))
            self.first = self._fit(plan.graph.inputs, self._planned)
        else:
            programs = tuple(model)
            self.first = ShapedPrograms(inputs=plan.graph.inputs, programs=programs, specs=edge_specs(programs))
        key = tuple(
            (model_input.name, model_input.sample_shape, getattr(torch, model_input.dtype))
            for model_input in plan.graph.inputs
        )
        self._known: dict[_Key, ShapedPrograms] = {key: self.first}

    @property
    def captures(self) -> int:
        """How often the model was captured for inputs of other shapes."""
        return 0 if self._model is None else self._lengths.captures

    def follow_modes(self) -> None:
        """Put the parts of this rank into the modes of the user's submodules."""
        if self._model is not None:
            self._submodules.follow_modes()

    def known(self, batch: Mapping[str, Tensor]) -> ShapedPrograms | None:
        """Return the split for inputs of these shapes; None if these shapes are new."""
        return self._known.get(_key(batch))

    def fit(self, batch: Mapping[str, Tensor]) -> ShapedPrograms:
        """Return the split for inputs of these shapes.

        Raises:
            InvalidInput: the model cannot be captured with these inputs, or its graph differs for them; a
                floating-point input has another dtype than in the example.
        """
        shaped = self.known(batch)
        if shaped is None:
            shaped = self._known[_key(batch)] = self._make(describe(batch))
        return shaped

    def _make(self, inputs: Inputs) -> ShapedPrograms:
        if self._model is None:  # their outputs are checked before they are sent
            return ShapedPrograms(inputs=inputs, programs=self.first.programs, specs=self.first.specs)
        if self._precision not in DTYPES:  # autocast converts
            check_dtypes(inputs, self._plan.graph.inputs)
        return self._fit(inputs, self._lengths.make(inputs))

    def _capture(self, model: nn.Module, inputs: Inputs) -> tuple[ModuleStage, ...]:
        if self._groups is None:
            captured = self._captured or capture_for(model, self._plan.graph)
            self._groups = operator_nodes(split_like(captured, self._plan.graph))
            self._lengths.add(self._plan.graph.inputs, self._planned)
        return split_for_shapes(model, self._plan, self._groups, inputs, self._submodules)

    def _fit(self, inputs: Inputs, programs: tuple[ModuleStage, ...]) -> ShapedPrograms:
        specs = edge_specs(programs)
        if self._precision in DTYPES:
            specs, dtypes = autocast_specs(programs, inputs, self._device, DTYPES[self._precision])
            programs = tuple(
                replace(program, output_dtypes=dtypes) if program.is_output else program for program in programs
            )
        return ShapedPrograms(inputs=inputs, programs=programs, specs=specs)


def check_dtypes(inputs: Inputs, planned: Inputs) -> None:
    """Check that floating-point inputs have the dtypes of the example. Torch names only the operator that fails.

    Raises:
        InvalidInput: one differs.
    """
    for each, example in zip(inputs, planned, strict=True):
        dtypes = [getattr(torch, dtype) for dtype in (each.dtype, example.dtype)]
        if each.dtype != example.dtype and any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
            raise InvalidInput(
                f"is {each.dtype}, in the example it was {example.dtype}",
                where=f"input '{each.name}'",
                remedy=f"Convert it, {each.name}.to(torch.{example.dtype}), or capture the model with such an input.",
            )


def _key(batch: Mapping[str, Tensor]) -> _Key:
    # The same information as `describe`, but cheap, because it is looked up in every step.
    return tuple([(name, tensor.shape[1:], tensor.dtype) for name, tensor in batch.items()])


def format_inputs(inputs: Inputs) -> str:
    """Return inputs as text for messages, without their first dimension (samples)."""
    return ", ".join(f"{model_input.name} {model_input.dtype}{[*model_input.sample_shape]}" for model_input in inputs)
